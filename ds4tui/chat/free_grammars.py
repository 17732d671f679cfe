"""The grammar of a reply that may say anything, but calls strict tools by their schemas only.

    free text, `<tool_call>` a call, free text ..

In the text all is allowed but what would be read as a call without being held to a schema: other
openings of the syntax, and calls without markers, which stand at the beginning and are held there
(bare_calls.py). A marker behind a backtick is text (code_fences.py). Calls of tools that are not
strict are free but for their names.
"""

import json
from collections.abc import Mapping, Sequence

from ds4tui.chat.call_grammars import FAMILIES, Family, any_call, arguments_of, json_calls
from ds4tui.chat.messages import Tool
from ds4tui.chat.rules import ANYTHING, NotWritable, Rules, beginning_with, quoted, regex
from ds4tui.chat.syntaxes import CLOSING, HERMES, OPENING, SYNTAXES
from ds4tui.chat.thinking import ThinkingMarks

_BLANKS = r"[ \t\r\n]*"
_FENCE = rf"```(json|tool_call|tool_code)?{_BLANKS}"
_CALL_KEYS = ("arguments", "parameters", "id", "type", "function")
_LINE = "\n"
_ANY_OBJECT = '{"type": "object"}'


def free_rules(
    tools: Sequence[Tool], syntax: str | None, several: bool, marks: ThinkingMarks, rules: Rules
) -> tuple[str, dict[str, str]]:
    """The expression of a reply; and of which strict tools, and why, calls are JSON although the
    family has another syntax."""
    family = FAMILIES.get(syntax or "")
    behind, held = _native(family, tools, several, rules) if family else ("", {})
    others = [tool for tool in tools if family is None or tool.name in held]
    ways: dict[str, list[str]] = {family.mark: [behind]} if family and behind else {}
    if others:
        body = json_calls([_as_held(tool) for tool in others], "arguments", rules)
        ways.setdefault(OPENING, []).append(f"{quoted(_LINE)} {body} {quoted(_LINE + CLOSING)}")
    calls = {mark: rules.add("behind", " | ".join(each)) for mark, each in ways.items()}
    text = _Text(tools, syntax, calls, marks, rules)
    return rules.add("reply", f"{text.from_the_beginning(several)} | {text.bare(several)}"), held


def _native(
    family: Family, tools: Sequence[Tool], several: bool, rules: Rules
) -> tuple[str, dict[str, str]]:
    """What stands behind the family's mark."""
    calls, held = [], {}
    for tool in tools:
        try:
            calls.append((family.call if tool.strict else family.loose)(tool, rules))
        except NotWritable as exc:
            held[tool.name] = str(exc)
    if not calls:
        return "", held
    if not family.opens:
        return " | ".join(beginning_with(family.mark, call) for call in calls), held
    named = [rules.add("call", call) for call in calls]
    return beginning_with(family.mark, any_call(family, named, several, rules)), held


def _as_held(tool: Tool) -> Tool:
    return tool if tool.strict else Tool(tool.name, tool.description, _ANY_OBJECT)


class _Text:
    """Free text up to one of the marks of `calls`, each with what stands behind it, or to the
    end."""

    def __init__(
        self,
        tools: Sequence[Tool],
        syntax: str | None,
        calls: Mapping[str, str],
        marks: ThinkingMarks,
        rules: Rules,
    ) -> None:
        self._tools, self._calls, self._rules = tools, calls, rules
        self._names = f"({'|'.join(regex(tool.name) for tool in tools)})"
        self._all = rules.add("ALL", f"/{ANYTHING}/")
        # One or two backticks, before which none stands.
        self._ticked = rules.add("TICKED", rf"/({ANYTHING}[^`])?`{{1,2}}/")
        self._marked = {mark: self._unticked("MARKED", quoted(mark)) for mark in calls}
        known = SYNTAXES.get(syntax or "", HERMES).openings
        others = "|".join(regex(text) for text in known if text not in calls)
        other = f"{self._unticked('OTHER', f'/{others}/')} {self._all}" if others else ""
        self._no_other = f" & ~({other})" if others else ""
        self._bare = rules.add("BARE", f"/{_BLANKS}({_FENCE})?\\{{/")
        python = rf"({_FENCE})?\[{_BLANKS}(print\()?|```tool_code{_BLANKS}(print\()?"
        first = f"/{_BLANKS}({regex(marks.opening)}|({python}){self._names}\\()/"
        self._not_first = rules.add("NOT_FIRST", f"({self._bare} | {first}) {self._all}")

    def _unticked(self, name: str, mark: str) -> str:
        """Text up to a mark that does not stand behind backticks."""
        text = f"({self._all} {mark}) & ~({self._ticked} {mark})"
        return self._rules.add(name, text)

    def from_the_beginning(self, several: bool) -> str:
        return self._segments(several, f" & ~{self._not_first}")

    def _segments(self, several: bool, first: str) -> str:
        """Text and calls, the first text as that says more."""
        call, opened = self._opened(""), self._opened(first)
        last, only = self._last(""), self._last(first)
        more = f"{call}* " if several else ""
        return self._rules.add("said", f"{only} | {opened} {more}{last}")

    def _opened(self, more: str) -> str:
        """Text up to a mark, and the call behind it."""
        rules, told = self._rules, []
        for mark, behind in self._calls.items():
            text = f"{self._marked[mark]}{self._no_other}{more}"
            told.append(f"{rules.add('text', rules.add('OPENED', text), '[lazy]')} {behind}")
        return rules.add("opened", " | ".join(told))

    def _last(self, more: str) -> str:
        marked = self._rules.add("ANY_MARKED", " | ".join(self._marked.values()))
        text = f"{self._all} & ~({marked} {self._all}){self._no_other}{more}"
        return self._rules.add("LAST", text)

    def bare(self, several: bool) -> str:
        """An object at the beginning: a call without a marker, or JSON that is none, as its first
        key tells."""
        rules = self._rules
        blanks = rules.add("BLANKS", f"/{_BLANKS}/")
        keys = "|".join(("name", *_CALL_KEYS))
        a_text = rules.add("A_TEXT", r'/"[^"\\]*"/')
        other_key = rules.add("OTHER_KEY", f'{a_text} & ~/"({keys})"/')
        other_name = rules.add("OTHER_NAME", f'{a_text} & ~/"{self._names}"/')
        other_type = rules.add("OTHER_TYPE", f'{a_text} & ~/"function"/')
        said = self._segments(several, "")
        colon = f'{blanks} ":" {blanks}'
        name = f'{blanks} "\\"name\\"" {colon}'
        called = rules.add("called", " | ".join(map(self._called, self._tools)))
        again = rules.add("AGAIN", rf"/{_BLANKS}[;,]?{_BLANKS}\{{/")
        end = rules.add("BARE_END", rf"/{_BLANKS}(```)?{_BLANKS}/")
        more = f"({again} {name} {called})* " if several else ""
        ways = [
            f"{self._bare} {name} {called} {more}{end}",
            f"{self._bare} {name} {other_name} {said}",
            f'{self._bare} {blanks} ({other_key} | "}}") {said}',
            f'{self._bare} {blanks} "\\"type\\"" {colon} {other_type} {said}',
        ]
        return rules.add("bare", " | ".join(ways))

    def _called(self, tool: Tool) -> str:
        """From a tool's name on."""
        schema = arguments_of(_as_held(tool))
        body = self._rules.json(schema, schema)
        blanks = self._rules.add("BLANKS", f"/{_BLANKS}/")
        word = '("\\"arguments\\"" | "\\"parameters\\"")'
        name = quoted(json.dumps(tool.name, ensure_ascii=False))
        return f'{name} {blanks} "," {blanks} {word} {blanks} ":" {blanks} {body} {blanks} "}}"'
