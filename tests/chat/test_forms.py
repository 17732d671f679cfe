"""What requests ask of a reply's form, and what of that cannot be had."""

import json
from pathlib import Path

import pytest
from gguf.constants import TokenType

from ds4tui.chat.forms import Forms
from ds4tui.chat.grammars import ANY_OBJECT, AnswerFormat, ToolChoice
from ds4tui.chat.messages import Tool
from ds4tui.engine.constraint import Constraint
from ds4tui.errors import RequestError
from tests.engine.vocabularies import tokenizer_of

READ, STOP = Tool("read", "", '{"type": "object"}'), Tool("stop", "", "")
JSON = AnswerFormat(ANY_OBJECT, "a JSON object", "response_format")


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    folder: Path = tmp_path_factory.mktemp("forms")
    tokenizer = tokenizer_of(folder, ("<|im_end|>", TokenType.CONTROL))
    return Forms(tokenizer, tokenizer.end_ids)


def asked(forms: Forms, *args: object, tools: tuple[Tool, ...] = (READ, STOP)) -> Constraint | None:
    answer = next((a for a in args if isinstance(a, AnswerFormat)), None)
    choice = next((a for a in args if isinstance(a, ToolChoice)), ToolChoice())
    return forms.constraint(answer, choice, tools, "none")


def test_a_reply_is_free_unless_asked(forms: Forms) -> None:
    assert asked(forms) is None
    assert asked(forms, ToolChoice("none")) is None


def test_what_a_form_is_called(forms: Forms) -> None:
    json_only, either, call = (
        asked(forms, JSON, ToolChoice("none")),
        asked(forms, JSON),
        asked(forms, JSON, ToolChoice("required", ("stop",))),
    )
    assert json_only is not None and "call" not in json_only.grammar
    assert either is not None and "calls" in either.grammar and "json_" in either.grammar
    assert call is not None and call.what == "a call of a tool"
    assert '"stop"' in call.grammar and '"read"' not in call.grammar


@pytest.mark.parametrize(
    ("choice", "tools", "said"),
    [
        (ToolChoice("required"), (), "there are no tools"),
        (ToolChoice("required", ("write",)), (READ, STOP), r'no tool "write".*"read", "stop"'),
    ],
)
def test_a_call_that_cannot_be_required(
    forms: Forms, choice: ToolChoice, tools: tuple[Tool, ...], said: str
) -> None:
    with pytest.raises(RequestError, match=said) as raised:
        asked(forms, choice, tools=tools)
    assert raised.value.param == "tool_choice"


def test_a_schema_that_cannot_be_followed_names_its_field(forms: Forms) -> None:
    wrong = AnswerFormat('{"type": "no such"}', "the schema 'x'", "response_format.json_schema")
    with pytest.raises(RequestError, match=r"response_format.json_schema: the schema 'x'"):
        asked(forms, wrong)


def test_a_call_is_required_whatever_else_its_schema_says(forms: Forms) -> None:
    """Claude Code's tools say `propertyNames`."""
    parameters = {
        "type": "object",
        "properties": {"env": {"type": "object", "propertyNames": {"type": "string"}}},
    }
    tool = Tool("run", "", json.dumps(parameters))
    assert asked(forms, ToolChoice("required"), tools=(tool,)) is not None
    with pytest.raises(RequestError, match="propertyNames"):
        asked(forms, AnswerFormat(tool.parameters, "the schema", "text"), tools=())
