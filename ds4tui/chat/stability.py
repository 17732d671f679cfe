"""Which templates change what they wrote before, found by trying at load.

A model has seen each turn as it was rendered when it was the newest. A template whose rendering
of a longer conversation does not begin with that of the shorter one would have it computed again
at every turn; here it is told in words what changes and when.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ds4tui.cache.timeline import Timeline
from ds4tui.chat.messages import Message, ToolCall
from ds4tui.chat.probing import Abilities
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import TemplateError

_log = logging.getLogger(__name__)

Render = Callable[[Sequence[Message], bool | None], Timeline]

_SYSTEM, _QUESTION = Message("system", "Be brief."), Message("user", "A question.")
_MORE = Message("user", "And more.")
_RESULT = Message("tool", "A result.", tool_call_id="call00001", name="read")
_CALL = ToolCall("call00001", "read", "{}")
_THOUGHT = "Zqthought"


def conversations(said: Message) -> Iterator[list[Message]]:
    """Small ones of several turns; `said` is their reply."""
    calling = replace(said, tool_calls=(_CALL,))
    for opening in ([_QUESTION], [_SYSTEM, _QUESTION]):
        for turns in ((said, _MORE), (calling, _RESULT, said, _MORE)):
            yield [*opening, *turns * 3]


def instabilities(tokenizer: Tokenizer, abilities: Abilities, render: Render) -> list[str]:
    """What the template changes in earlier turns, in words; nothing for one that keeps them.
    `render` gives whole renderings, as the template writes all of it."""
    said = Message("assistant", "A reply.", tuple(tokenizer.encode("A reply.")))
    switches = (None, False, True) if abilities.thinking_switch else (None,)
    found: list[str] = []
    tried = 0
    for thinking in switches:
        for conversation in conversations(said):
            try:
                problem = _change(tokenizer, conversation, partial(_switched, render, thinking))
            except TemplateError as exc:
                _log.debug("probe: %s", exc)
                continue
            tried += 1
            if problem:
                how = {None: "", True: "with thinking on ", False: "with thinking off "}[thinking]
                found.append(how + problem)
                break
    if not tried:
        return ["the template failed on every probe conversation"]
    if abilities.reasoning and _drops_reasoning(tokenizer, render):
        found.append("the template leaves out the reasoning of replies before the last question")
    return found


def _switched(render: Render, thinking: bool | None, messages: Sequence[Message]) -> Timeline:
    return render(messages, thinking)


def _change(
    tokenizer: Tokenizer,
    conversation: Sequence[Message],
    render: Callable[[Sequence[Message]], Timeline],
) -> str:
    """What a rendering changes of the one before it, or ""."""
    replies = [n for n, m in enumerate(conversation) if m.role == "assistant"]
    for turn, (at, following) in enumerate(
        zip(replies, [*replies[1:], len(conversation)], strict=True), start=1
    ):
        ids = conversation[at].sampled_ids or ()
        before = render(conversation[:at]).extended(ids)
        after = render(conversation[:following])
        common = before.common_prefix(after)
        if common < len(before):
            was, now = (_around(tokenizer, t, common) for t in (before, after))
            return f"after turn {turn} the template writes {now!r} where {was!r} was"
    return ""


def _drops_reasoning(tokenizer: Tokenizer, render: Render) -> bool:
    thought = Message("assistant", "A reply.", reasoning=_THOUGHT)
    try:
        newest, earlier = (
            tokenizer.decode(render(m, None).ids.tolist())
            for m in ([_QUESTION, thought], [_QUESTION, thought, _MORE])
        )
    except TemplateError:
        return False
    return _THOUGHT in newest and _THOUGHT not in earlier


def _around(tokenizer: Tokenizer, timeline: Timeline, at: int) -> str:
    ids = timeline.ids[max(0, at - 4) : at + 4].tolist()
    return tokenizer.decode(ids, skip_special=False)
