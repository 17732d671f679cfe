"""The form that a request asks of a reply, as what the engine holds it to."""

import json
import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ds4tui.chat.call_grammars import JSON_SYNTAXES
from ds4tui.chat.grammars import (
    AnswerFormat,
    Reasoning,
    ReplyGrammar,
    ToolChoice,
    free_grammar,
    reply_grammar,
)
from ds4tui.chat.messages import Tool
from ds4tui.chat.thinking import THINK, ThinkingMarks
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import RequestError

if TYPE_CHECKING:  # loads llguidance, which few replies need
    from ds4tui.engine.constraint import Constraint, GrammarTokens

_log = logging.getLogger(__name__)


class Forms:
    """Of one model, which writes calls in that syntax. Thread-safe."""

    def __init__(
        self, tokenizer: Tokenizer, end_ids: frozenset[int], syntax: str | None = "hermes"
    ) -> None:
        self._tokenizer, self._end_ids, self._syntax = tokenizer, end_ids, syntax

    @cached_property
    def _tokens(self) -> "GrammarTokens":
        from ds4tui.engine.constraint import GrammarTokens

        return GrammarTokens(self._tokenizer, self._end_ids)

    def constraint(
        self,
        answer: AnswerFormat | None,
        choice: ToolChoice,
        tools: Sequence[Tool],
        reasoning: Reasoning,
        marks: ThinkingMarks = THINK,
    ) -> "Constraint | None":
        """None where a reply may be anything. A model that may call and is asked for JSON does
        either; one that is offered strict tools says anything, but calls them by their schemas.
        `marks` stand around its reasoning. Raises RequestError, naming the field, for what cannot
        be required."""
        callable_tools = _callable(choice, tools)
        if choice.kind == "required":
            answer = None
        if answer is not None:
            param, what = answer.param, answer.what
        elif choice.kind == "required":
            param, what = choice.param, "a call of a tool"
        elif any(tool.strict for tool in callable_tools):
            param, what = "tools", "strict arguments"
        else:
            return None

        def grammar(syntax: str | None) -> ReplyGrammar:
            if what == "strict arguments":
                return free_grammar(callable_tools, choice.several, reasoning, syntax, marks)
            return reply_grammar(answer, callable_tools, choice.several, reasoning, syntax, marks)

        if self._syntax is None and callable_tools:
            _log.info("calls are held to JSON: how this model's template writes them is not known")
        try:
            return self._constraint(grammar(self._syntax), what, param)
        except RequestError as exc:
            if self._syntax in JSON_SYNTAXES or not callable_tools:
                raise
            _log.info("calls are held to JSON, not to the model's own syntax: %s", exc.message)
            return self._constraint(grammar(None), what, param)

    def _constraint(self, grammar: ReplyGrammar, what: str, param: str) -> "Constraint":
        from ds4tui.engine.constraint import Constraint

        for name, reason in grammar.held_as_json:
            _log.info("calls of %s are held to JSON: %s", json.dumps(name), reason)
        return Constraint.of(grammar.text, what, self._tokens, param)


def _callable(choice: ToolChoice, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    if choice.kind == "none":
        return ()
    if choice.kind == "required" and not tools:
        raise RequestError(
            f"{choice.param}: a call is required, but there are no tools.",
            choice.param,
            "Send tools, or leave the field out.",
        )
    offered = {tool.name: tool for tool in tools}
    for name in choice.names:
        if name not in offered:
            known = ", ".join(map(json.dumps, offered)) or "none"
            raise RequestError(
                f"{choice.param}: there is no tool {json.dumps(name)}; those that were sent are "
                f"{known}.",
                choice.param,
            )
    return tuple(offered[name] for name in choice.names) or tuple(tools)
