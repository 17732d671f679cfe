"""Replies held to a grammar: the masks, and that nothing but what the grammar allows is picked."""

import json
from typing import Any

import numpy as np
import pytest
from gguf.constants import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.grammars import ANY_OBJECT, AnswerFormat, Reasoning, reply_grammar
from ds4tui.chat.messages import Tool
from ds4tui.chat.toolcalls import CallEnded, CallParser
from ds4tui.engine.constraint import Constraint, GrammarTokens
from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.sampling import Sampler
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import EngineError, RequestError
from tests.engine.vocabularies import tokenizer_of
from tests.scale import scaled

END = "<|im_end|>"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
READ = Tool("read", "", json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}}))
STOP = Tool("stop", "", "")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(
        tmp_path_factory.mktemp("constraint"),
        (END, TokenType.CONTROL),
        ("<think>", TokenType.USER_DEFINED),
        ("</think>", TokenType.USER_DEFINED),
        ("<tool_call>", TokenType.USER_DEFINED),
        ("</tool_call>", TokenType.USER_DEFINED),
        merges=['{ "', "t r", "tr u", "tru e", "Ġ Ġ", "ĠĠ ĠĠ"],
    )


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> GrammarTokens:
    return GrammarTokens(tokenizer, tokenizer.end_ids)


def json_reply(schema: dict[str, Any] | str, reasoning: Reasoning = "none") -> str:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return reply_grammar(AnswerFormat(text, "", ""), (), reasoning=reasoning).text


def tool_calls(tools: list[Tool], several: bool) -> str:
    return reply_grammar(None, tools, several).text


def constraint(tokens: GrammarTokens, grammar: str) -> Constraint:
    return Constraint.of(grammar, "the form", tokens, "response_format")


def follows(tokenizer: Tokenizer, wanted: Constraint, text: str) -> bool:
    """Whether all of `text` may be said, and the reply may end behind it."""
    matcher = wanted.matcher()
    for token in tokenizer.encode(text):
        if not matcher.allowed(tokenizer.vocab_size)[token]:
            return False
        matcher.accept(token)
    ends = matcher.allowed(tokenizer.vocab_size)[sorted(tokenizer.end_ids)]
    assert bool(ends.any()) == matcher.is_satisfied
    return matcher.is_satisfied


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ('{"a": 1}', True),
        ('\n{"a":\n  true}', True),
        ("{}", True),
        ('{"a":          1}', False),  # blanks without end
        ('{"a": 1}\n\n\n\n\n\n', False),
        ("[1]", False),
        ("Sure: {}", False),
        ('{"a": 1', False),
        ("<think>x</think>{}", False),
    ],
)
def test_an_object(tokenizer: Tokenizer, tokens: GrammarTokens, text: str, may: bool) -> None:
    assert follows(tokenizer, constraint(tokens, json_reply(ANY_OBJECT)), text) == may


@pytest.mark.parametrize(
    ("reasoning", "text", "may"),
    [
        ("maybe", "<think>\n{ is not it </think>\n\n{}", True),
        ("maybe", "{}", True),
        ("maybe", "<think> and no end {}", False),
        ("begun", "I am inside already </think>{}", True),
        ("begun", "{}", False),
        ("begun", "no </thin end </think>\n{}", True),
        ("begun", "a </think> b </think>{}", False),  # the first end is the end
    ],
)
def test_reasoning_is_free_and_comes_first(
    tokenizer: Tokenizer, tokens: GrammarTokens, reasoning: Reasoning, text: str, may: bool
) -> None:
    wanted = constraint(tokens, json_reply(ANY_OBJECT, reasoning))
    assert follows(tokenizer, wanted, text) == may


def call(arguments: str, name: str = "read") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "several", "may"),
    [
        (call('{"n": 3}'), True, True),
        (call('{"n": 3}') + "\n" + call("{}", "stop"), True, True),
        (call('{"n": 3}') + "\n" + call("{}", "stop"), False, False),
        (call('{"n": "3"}'), True, False),
        (call("{}", "reed"), True, False),
        ("I will not.", True, False),
        ("", True, False),
    ],
)
def test_calls(
    tokenizer: Tokenizer, tokens: GrammarTokens, text: str, several: bool, may: bool
) -> None:
    wanted = constraint(tokens, tool_calls([READ, STOP], several))
    assert follows(tokenizer, wanted, text) == may


def test_calls_or_json(tokenizer: Tokenizer, tokens: GrammarTokens) -> None:
    wanted = constraint(tokens, reply_grammar(AnswerFormat(ANY_OBJECT, "", ""), [READ]).text)
    assert follows(tokenizer, wanted, '{"a": 1}')
    assert follows(tokenizer, wanted, call('{"n": 3}'))
    assert not follows(tokenizer, wanted, "Sure.")


def reply(tokenizer: Tokenizer, wanted: Constraint, seed: int, temperature: float = 1.0) -> str:
    """What a model with random logits, which wants never to end, is made to say."""
    random = np.random.default_rng(seed)
    params = SamplingParams(temperature=temperature, seed=seed, top_p=0.9, repetition_penalty=1.1)
    sampler = Sampler(params, np.zeros(0, np.int64), wanted.matcher())
    ids: list[int] = []
    while len(ids) < 4000:
        logits = random.normal(size=tokenizer.vocab_size + 5).astype(np.float32) * 4
        logits[sorted(tokenizer.end_ids)] = -30
        token = sampler.pick(logits).token_id
        if token in tokenizer.end_ids:
            return tokenizer.decode(ids)
        sampler.accept(token)
        ids.append(token)
    raise AssertionError("it never ended")


@given(st.integers(0, 2**32))
@settings(max_examples=scaled(25), deadline=None)
def test_whatever_the_model_wants_it_says_what_the_schema_allows(
    tokenizer: Tokenizer, tokens: GrammarTokens, seed: int
) -> None:
    said: dict[str, Any] = json.loads(
        reply(tokenizer, constraint(tokens, json_reply(WEATHER)), seed)
    )
    assert set(said) == {"city", "days", "unit"}
    assert len(said["city"]) <= 12 and said["unit"] in ("C", "F")
    assert 1 <= len(said["days"]) <= 3 and all(type(day) is int for day in said["days"])


@given(st.integers(0, 2**32))
@settings(max_examples=scaled(15), deadline=None)
def test_what_is_required_to_call_is_read_as_calls(
    tokenizer: Tokenizer, tokens: GrammarTokens, seed: int
) -> None:
    tool = Tool("look", "", json.dumps(WEATHER))
    text = reply(tokenizer, constraint(tokens, tool_calls([tool], several=False)), seed)
    parser = CallParser(offered=["look"])
    events = [*parser.push(text), *parser.finish()]
    calls = [event.call for event in events if isinstance(event, CallEnded)]
    assert [one.name for one in calls] == ["look"]
    assert set(json.loads(calls[0].arguments)) == {"city", "days", "unit"}


def test_a_wrong_schema_is_told_before_work_starts(tokens: GrammarTokens) -> None:
    with pytest.raises(RequestError, match=r"response_format: the form cannot be required") as told:
        constraint(tokens, json_reply({"type": "object", "patternProperties": {"(": {}}}))
    assert told.value.param == "response_format" and told.value.hint


def test_a_model_that_cannot_end_cannot_be_shaped(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no token that ends"):
        constraint(GrammarTokens(tokenizer, ()), json_reply(ANY_OBJECT))


def test_a_token_that_was_not_allowed_fails_in_words(
    tokenizer: Tokenizer, tokens: GrammarTokens
) -> None:
    matcher = constraint(tokens, json_reply(ANY_OBJECT)).matcher()
    with pytest.raises(EngineError, match="could not be held to the form"):
        matcher.accept(tokenizer.encode("x")[0])


def test_logits_that_leave_nothing_allowed_fail_in_words(
    tokenizer: Tokenizer, tokens: GrammarTokens
) -> None:
    matcher = constraint(tokens, json_reply(ANY_OBJECT)).matcher()
    logits = np.full(tokenizer.vocab_size, -np.inf, np.float32)
    logits[tokenizer.encode("x")[0]] = 1.0
    with pytest.raises(EngineError, match="leaves the model no token"):
        Sampler(SamplingParams(), np.zeros(0, np.int64), matcher).pick(logits)


def test_each_job_has_a_matcher_of_its_own(tokenizer: Tokenizer, tokens: GrammarTokens) -> None:
    wanted = constraint(tokens, json_reply(WEATHER))
    first, second = (reply(tokenizer, wanted, seed=7, temperature=0.0) for _ in range(2))
    assert first == second
