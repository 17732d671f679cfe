"""The grammars of replies that must be JSON, or must call tools, in llguidance's Lark form.

Reasoning, where a model's template has it, comes first and is free; then the grammar holds.
Blanks are few by grammar: models that may write blanks for ever do. Knows neither the library
nor tokens.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ds4tui.chat.messages import Tool

# Between two parts of JSON: nothing, or blanks and a line's end with its indentation.
_BLANKS = r"[ ]{0,2}|\n[ ]{0,24}"
_JSON_OPTIONS = {"whitespace_pattern": _BLANKS}
# Agents' schemas say more than can be held by grammar (`propertyNames`): of arguments the rest is
# held then, since a call is better than none. The form of an answer is held whole, or refused.
_CALL_OPTIONS = {**_JSON_OPTIONS, "lenient": True}

ANY_OBJECT = '{"type": "object"}'


# Whether a reply begins with reasoning: never, if it wants to, or the prompt has begun it.
Reasoning = Literal["none", "maybe", "begun"]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """A reply that must be JSON: `schema` is JSON text of a JSON Schema, `what` names it for
    people, `param` the field of the request that asked for it."""

    schema: str
    what: str
    param: str


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may, or must, call: "auto", "none" (the tools stay in the prompt, which
    what is resident was rendered with) or "required"; then one of `names`, all for none. With
    `several` it may call more than once in one reply."""

    kind: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    several: bool = True
    param: str = "tool_choice"


def reply_grammar(
    answer: AnswerFormat | None,
    tools: Sequence[Tool],
    several: bool = True,
    reasoning: Reasoning = "none",
) -> str:
    """A reply that is one JSON value as `answer` says, or calls at least one of `tools`, in the
    form of Hermes and Qwen; where both are given, either. No grammar holds its reasoning."""
    ways, rules = [], []
    if answer is not None:
        ways.append("json")
        rules.append(f"json: LEAD %json {_json(json.loads(answer.schema))}\n")
    if tools:
        ways.append("calls")
        rules.append(_calls(tools, several))
    return _grammar(f"answer: {' | '.join(ways)}\n" + "".join(rules), reasoning)


def _calls(tools: Sequence[Tool], several: bool) -> str:
    forms = [_call_schema(tool) for tool in tools]
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    more = ' ("\\n" call)*' if several else ""
    return (
        f"calls: LEAD call{more}\n"
        'call: "<tool_call>\\n" body "\\n</tool_call>"\n'
        f"body: %json {_json(schema, _CALL_OPTIONS)}\n"
    )


def _call_schema(tool: Tool) -> dict[str, Any]:
    parameters = json.loads(tool.parameters) if tool.parameters else {}
    arguments = parameters if parameters.get("type") == "object" else {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _grammar(answer: str, reasoning: Reasoning) -> str:
    rules = answer + "LEAD: /[ \\n]{0,2}/\n"
    if reasoning == "begun":
        return "start: thought answer\nthought[lazy]: /(?s:.*)<\\/think>/\n" + rules
    if reasoning == "maybe":
        thought = "thought[lazy]: /<think>(?s:.*)<\\/think>/\n"
        return "start: thought answer | answer\n" + thought + rules
    return "start: answer\n" + rules


def _json(schema: dict[str, Any], options: dict[str, Any] = _JSON_OPTIONS) -> str:
    return json.dumps({**schema, "x-guidance": options}, ensure_ascii=True)
