"""The grammars of replies that must be JSON, or must call tools, in llguidance's Lark form.

Reasoning, where a template has it, comes first and is free, between the marks of its family;
then the grammar holds. Blanks are few by grammar: models that may write blanks for ever do. Knows
neither the library nor tokens.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ds4tui.chat.call_grammars import call_rules
from ds4tui.chat.free_grammars import free_rules
from ds4tui.chat.messages import Tool
from ds4tui.chat.rules import Rules, regex, written
from ds4tui.chat.thinking import THINK, ThinkingMarks

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


@dataclass(frozen=True, slots=True)
class ReplyGrammar:
    """`held_as_json` says of which tools, and why, calls are held to Hermes' form although the
    family has another."""

    text: str
    held_as_json: tuple[tuple[str, str], ...] = ()


def reply_grammar(
    answer: AnswerFormat | None,
    tools: Sequence[Tool],
    several: bool = True,
    reasoning: Reasoning = "none",
    syntax: str | None = "hermes",
    marks: ThinkingMarks = THINK,
) -> ReplyGrammar:
    """A reply that is one JSON value as `answer` says, or calls at least one of `tools` in a
    family's `syntax`; where both are given, either. No grammar holds its reasoning."""
    ways, rules = [], Rules()
    held: tuple[tuple[str, str], ...] = ()
    if answer is not None:
        ways.append(rules.add("json", f"LEAD %json {written(json.loads(answer.schema))}"))
    if tools:
        calls = call_rules(tools, syntax, several, rules)
        ways.append(rules.add("calls", f"LEAD {calls.expression}"))
        held = tuple(calls.held_as_json.items())
    text = f"answer: {' | '.join(ways)}\n{rules}"
    return ReplyGrammar(_grammar(text, reasoning, marks), held)


def free_grammar(
    tools: Sequence[Tool],
    several: bool = True,
    reasoning: Reasoning = "none",
    syntax: str | None = "hermes",
    marks: ThinkingMarks = THINK,
) -> ReplyGrammar:
    """A reply that says anything, but calls those of `tools` that are strict by their schemas."""
    rules = Rules()
    expression, held = free_rules(tools, syntax, several, marks, rules)
    text = f"answer: {expression}\n{rules}"
    return ReplyGrammar(_grammar(text, reasoning, marks), tuple(held.items()))


def _grammar(answer: str, reasoning: Reasoning, marks: ThinkingMarks) -> str:
    rules = answer + "LEAD: /[ \\n]{0,2}/\n"
    opening, closing = regex(marks.opening), regex(marks.closing)
    if reasoning == "begun":
        return f"start: thought answer\nthought[lazy]: /(?s:.*){closing}/\n" + rules
    if reasoning == "maybe":
        thought = f"thought[lazy]: /{opening}(?s:.*){closing}/\n"
        return "start: thought answer | answer\n" + thought + rules
    return "start: answer\n" + rules
