"""What a chat template can do, found by rendering small conversations at load.

Templates do not say what they take: they fail, or leave out what they do not know. So words that
occur nowhere else are given in every form that templates are known to take, and looked for in
what comes out.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ds4tui.chat.messages import Image, Message, Tool, ToolCall
from ds4tui.chat.template import ChatTemplate
from ds4tui.chat.turns import (
    TOLD_AS,
    Content,
    Forms,
    for_forms,
    tool_values,
    turn_values,
    typed,
)
from ds4tui.errors import TemplateError

_log = logging.getLogger(__name__)

_USER = Message("user", "Zqusr")
_SYSTEM = Message("system", "Zqsys")
_CALL = ToolCall("call00001", "zqtool", '{"zqkey": "zqvalue"}')
_CALLING = Message("assistant", "", tool_calls=(_CALL,))
_RESULT = Message("tool", "Zqresult", tool_call_id="call00001", name="zqtool")
_TURNS = [_USER, Message("assistant", "Zqreply"), Message("user", "Zqmore")]
_LATE_SYSTEM = [_SYSTEM, *_TURNS[:2], Message("system", "Zqlate"), _TURNS[2]]
_TOOL = Tool("zqtool", "Zqdoc", '{"type": "object", "properties": {"zqkey": {"type": "string"}}}')

_BOTH_SIDES = "ZqleftZqright"
# Places in it for images: in the middle, at the beginning, at the end; more than one.
_PLACES = ((6,), (0, 0, 6), (13,), (6, 6, 13))

# How calls are written, by what a template makes of one; the first that fits counts.
_SYNTAXES = (
    ("hermes", re.compile(r'<tool_call>\s*\{\s*"name":\s*"zqtool"')),
    ("qwen-xml", re.compile(r"<function=zqtool>\s*<parameter=zqkey>")),
    ("glm-5", re.compile(r"<tool_call>zqtool<arg_key>zqkey</arg_key>")),
    ("glm", re.compile(r"<tool_call>\s*zqtool\s*<arg_key>zqkey</arg_key>")),
    ("dsml-v4", re.compile(r'<｜DSML｜tool_calls>\s*<｜DSML｜invoke name="zqtool">')),
    ("dsml", re.compile(r'<｜DSML｜ ?invoke name="zqtool">\s*<｜DSML｜ ?parameter name="zqkey"')),
    ("deepseek-v3", re.compile(r"function<｜tool▁sep｜>zqtool\s*```json\s*\{")),
    ("deepseek-v3.1", re.compile(r"zqtool<｜tool▁sep｜>\s*\{")),
    ("gemma", re.compile(r'<\|tool_call>call:zqtool\{zqkey:<\|"\|>zqvalue')),
    ("llama3", re.compile(r'\{\s*"name":\s*"zqtool",\s*"parameters":\s*\{')),
)


@dataclass(frozen=True, slots=True)
class Abilities:
    """`tool_syntax` is how calls are written, by its name in toolcalls.SYNTAXES, None if in a way
    that is not read here or not at all. `tools` says whether descriptions of tools come out,
    `thinking_switch` whether thinking can be switched, `switch_in_opening` whether that shows
    behind the last question (else only in earlier turns, and switching changes all that comes
    after), `reasoning` whether that of the last turn is written."""

    forms: Forms
    tools: bool
    tool_syntax: str | None
    thinking_switch: bool
    switch_in_opening: bool
    reasoning: bool

    @property
    def calls_without_tools(self) -> bool:
        """Whether the template writes calls as its model does, although not what tools there
        are."""
        return self.tool_syntax in TOLD_AS


def probe(template: ChatTemplate) -> Abilities:
    """Never fails: a template that always does can do nothing."""
    forms = _content_form(template)
    rendered = _render(template, [_SYSTEM, _USER], forms)
    if not {"Zqsys", "Zqusr"} <= _words(rendered):
        forms = replace(forms, system_role=False)
    elif not {"Zqlate", "Zqmore"} <= _words(_render(template, _LATE_SYSTEM, forms)):
        forms = replace(forms, late_system=False)
    forms, called = _call_forms(template, forms)
    forms = _image_forms(template, forms)
    offered = _render(template, [_USER], forms, tools=(_TOOL,))
    on, off = (_render(template, [_USER], forms, thinking=on) for on in (True, False))
    thought = [_USER, Message("assistant", "Zqreply", reasoning="Zqthought")]
    return Abilities(
        forms=forms,
        tools={"zqtool", "zqkey"} <= _words(offered),
        tool_syntax=next((name for name, known in _SYNTAXES if known.search(called)), None),
        thinking_switch=on != off,
        switch_in_opening=_behind_question(on) != _behind_question(off),
        reasoning="Zqthought" in _render(template, thought, forms),
    )


def _behind_question(rendered: str) -> str:
    return rendered.rpartition("Zqusr")[2]


def turn_openings(template: ChatTemplate, forms: Forms) -> tuple[str, ...]:
    """What a template writes between a reply and the user's next text, and between that and the
    next reply; nothing for a template that does not write all three."""
    rendered = _render(template, _TURNS, forms)
    _, reply, after = rendered.rpartition("Zqreply")
    user, said, assistant = after.partition("Zqmore")
    return (user, assistant) if reply and said else ()


def _content_form(template: ChatTemplate) -> Forms:
    for forms in (Forms(), Forms(content_parts=True)):
        if "Zqusr" in _render(template, [_USER], forms):
            return forms
    return Forms()


def _call_forms(template: ChatTemplate, forms: Forms) -> tuple[Forms, str]:
    """The forms in which a call comes out with its arguments, and what comes out."""
    conversation = [_USER, _CALLING, _RESULT]
    for arguments_text in (False, True):
        found: list[tuple[Forms, str]] = []
        for empty in ("", None):
            tried = replace(forms, arguments_text=arguments_text, empty_content=empty)
            rendered = _render(template, conversation, tried, tools=(_TOOL,))
            # In single quotes or escaped the arguments are those of another form.
            if "zqvalue" in rendered and not re.search(r"""'zqkey'|\\"zqkey""", rendered):
                found.append((tried, rendered))
        if found:
            # The longer one has a reply without a word behind the calls.
            return min(found, key=lambda each: len(each[1]))
    return replace(forms, calls=False), ""


def _image_forms(template: ChatTemplate, forms: Forms) -> Forms:
    """What the template writes for an image, and in whose turns; nothing for one that has not
    the same words for each."""
    marker, roles = "", list[str]()
    results = [("tool", [_USER, _CALLING])] if forms.calls else []
    for role, before in [("user", []), *results]:
        said = _RESULT if role == "tool" else _USER
        tried = replace(forms, image_roles=frozenset([role]))
        for places in _PLACES:
            images = tuple(Image(b"", place) for place in places)
            turns = [*before, replace(said, text=_BOTH_SIDES, images=images)]
            rendered = _render(template, turns, tried)
            between, found, _ = rendered.rpartition("Zqleft")[2].partition("Zqright")
            marker = marker or between.strip()
            # A list that is written out as it stands is no way to show images.
            if not found or "type" in marker or rendered.count(marker or "Zq") != len(images):
                break
        else:
            roles.append(role)
    return replace(forms, image_marker=marker if roles else "", image_roles=frozenset(roles))


def _render(
    template: ChatTemplate,
    messages: Sequence[Message],
    forms: Forms,
    tools: Sequence[Tool] = (),
    thinking: bool | None = None,
) -> str:
    """What comes out, "" for a template that fails on it."""
    turns = [turn_values(m, _content(m, forms), forms, str) for m in for_forms(messages, forms)]
    try:
        return template.render(
            turns, tools=[tool_values(tool, str) for tool in tools] or None, thinking=thinking
        )
    except TemplateError as exc:
        _log.debug("probe: %s", exc)
        return ""


def _content(message: Message, forms: Forms) -> Content:
    if not message.images or message.role not in forms.image_roles:
        return message.text
    return typed(None if isinstance(e, Image) else e for e in message.elements())


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))
