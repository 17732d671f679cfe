"""The grammar of calls in the syntax of a family, in llguidance's Lark form.

    calls: OPENS call (JOINT call)* CLOSES

A call holds the name of a tool and arguments of its schema, in the schema's order. Where JSON
stands in a syntax, the library follows the schema; what stands there in other forms (texts between
tags, Gemma's literals) is written here. What no grammar of the kind can say makes NotWritable: such
a tool's call is then held to JSON behind `<tool_call>`, which is read in every syntax.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds4tui.chat.deepseek_calls import BEGIN, END, SEPARATOR
from ds4tui.chat.literal_grammars import gemma_object
from ds4tui.chat.messages import Tool
from ds4tui.chat.rules import (
    ANYTHING,
    CALL_OPTIONS,
    NotWritable,
    Rules,
    placed,
    quoted,
    regex,
    text_ending,
    written,
)
from ds4tui.chat.schemas import Schema, is_text, properties, resolved, schema_of
from ds4tui.chat.tag_calls import DSML_MARK

# Of a tool's parameters as a whole; what a list of arguments cannot say.
_TOO_MUCH = ("anyOf", "oneOf", "allOf", "not", "if", "patternProperties", "dependentRequired")
_TAG_BREAKERS = re.compile(r"[<>\"\s]|^$")


def arguments_of(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments, an object's."""
    schema = dict(schema_of(tool.parameters))
    return schema if resolved(schema, schema).get("type") == "object" else {"type": "object"}


@dataclass(frozen=True, slots=True)
class TagForm:
    """Around a call and around an argument: {name} and {key} stand for names, {text} for whether
    the value is one. `ends` ends a value; what follows it, up to the next tag, is `after`."""

    opens: str
    parameter: str
    ends: str
    after: str
    closes: str

    def call(self, tool: Tool, rules: Rules) -> str:
        if _TAG_BREAKERS.search(tool.name):
            raise NotWritable("its name does not fit between tags")
        told = [self._argument(each, rules) for each in _listed(tool)]
        opens, closes = self.opens.replace("{name}", tool.name), self.closes
        return " ".join([quoted(opens), *told, quoted(closes)])

    def loose(self, tool: Tool, rules: Rules) -> str:
        """A call whose arguments may be anything."""
        if _TAG_BREAKERS.search(tool.name):
            raise NotWritable("its name does not fit between tags")
        opens = quoted(self.opens.replace("{name}", tool.name))
        return f"{opens} {rules.add('text', f'/{ANYTHING}{regex(self.closes)}/', '[lazy]')}"

    def _argument(self, argument: "_Argument", rules: Rules) -> str:
        if _TAG_BREAKERS.search(argument.key):
            raise NotWritable(f"the argument {argument.key!r} does not fit between tags")
        name = rules.add("argument", self._written(argument, rules))
        return name if argument.is_required else f"{name}?"

    def _written(self, argument: "_Argument", rules: Rules) -> str:
        text = "true" if argument.is_text else "false"
        begin = quoted(self.parameter.replace("{key}", argument.key).replace("{text}", text))
        if not argument.is_text:
            value = rules.json(argument.schema, argument.root)
            return f"{begin} {value} {quoted(self.ends + self.after)}"
        value = text_ending(argument.schema, self.ends, rules)
        return f"{begin} {value} {quoted(self.after)}" if self.after else f"{begin} {value}"


@dataclass(frozen=True, slots=True)
class _Argument:
    key: str
    schema: Any
    root: Schema
    is_required: bool

    @property
    def is_text(self) -> bool:
        return is_text(self.schema)


def _listed(tool: Tool) -> list[_Argument]:
    """A tool's arguments in their order. Raises NotWritable for a schema that says more."""
    root = schema_of(tool.parameters)
    schema = resolved(root, root)
    for word in _TOO_MUCH:
        if schema.get(word):
            raise NotWritable(f"its parameters have {word!r}")
    known, required = properties(tool.parameters), schema.get("required") or []
    if schema.get("additionalProperties") and not known:
        raise NotWritable("its parameters may have any name")
    missing = [key for key in required if key not in known]
    if missing:
        raise NotWritable(f"the required argument {missing[0]!r} is not described")
    return [_Argument(key, each, root, key in required) for key, each in known.items()]


def _qwen() -> TagForm:
    return TagForm(
        "<tool_call>\n<function={name}>\n",
        "<parameter={key}>\n",
        "\n</parameter>",
        "\n",
        "</function>\n</tool_call>",
    )


def _glm(end: str) -> TagForm:
    parameter = f"<arg_key>{{key}}</arg_key>{end}<arg_value>"
    return TagForm(f"<tool_call>{{name}}{end}", parameter, "</arg_value>", end, "</tool_call>")


_DSML = TagForm(
    f'<{DSML_MARK}invoke name="{{name}}">\n',
    f'<{DSML_MARK}parameter name="{{key}}" string="{{text}}">',
    f"</{DSML_MARK}parameter>",
    "\n",
    f"</{DSML_MARK}invoke>\n",
)


def _deepseek(before: str, behind: str, after: str) -> Callable[[Tool, Rules], str]:
    def call(tool: Tool, rules: Rules) -> str:
        if _TAG_BREAKERS.search(tool.name):
            raise NotWritable("its name does not fit between marks")
        schema = arguments_of(tool)
        value = rules.json(schema, schema)
        return f"{quoted(BEGIN + before + tool.name + behind)} {value} {quoted(after + END)}"

    return call


def _gemma(tool: Tool, rules: Rules) -> str:
    if re.search(r"[\s,{}\[\]()<>\"'`=]|^$", tool.name):
        raise NotWritable("its name does not fit before a brace")
    known = {each.key: each for each in _listed(tool)}
    required = [key for key, each in known.items() if each.is_required]
    schema = {"properties": {k: e.schema for k, e in known.items()}, "required": required}
    value = gemma_object(schema, schema_of(tool.parameters), rules)
    return f"{quoted(f'<|tool_call>call:{tool.name}')} {value} {quoted('<tool_call|>')}"


def _loose_gemma(tool: Tool, rules: Rules) -> str:
    end = rules.add("text", f"/{ANYTHING}{regex('<tool_call|>')}/", "[lazy]")
    return f"{quoted(f'<|tool_call>call:{tool.name}' + '{')} {end}"


@dataclass(frozen=True, slots=True)
class Family:
    """`call` makes the expression of one tool's call, `loose` that of one whose arguments may be
    anything. `mark` is what calls begin with."""

    call: Callable[[Tool, Rules], str]
    loose: Callable[[Tool, Rules], str]
    mark: str
    opens: str = ""
    joint: str = "\n"
    closes: str = ""


def _tags(form: TagForm, joint: str) -> Family:
    return Family(form.call, form.loose, "<tool_call>", joint=joint)


def _dsml(block: str) -> Family:
    mark, closes = f"<{DSML_MARK}{block}>", f"</{DSML_MARK}{block}>"
    return Family(_DSML.call, _DSML.loose, mark, f"{mark}\n", "", closes)


def _marks(before: str, behind: str, after: str, joint: str) -> Family:
    call, (opens, closes) = _deepseek(before, behind, after), _BLOCK

    def loose(tool: Tool, rules: Rules) -> str:
        return call(Tool(tool.name, "", '{"type": "object"}'), rules)

    return Family(call, loose, opens, opens, joint, closes)


_BLOCK = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
FAMILIES: Mapping[str, Family] = {
    "qwen-xml": _tags(_qwen(), "\n"),
    "glm": _tags(_glm("\n"), "\n"),
    "glm-5": _tags(_glm(""), ""),
    "dsml": _dsml("function_calls"),
    "dsml-v4": _dsml("tool_calls"),
    "deepseek-v3": _marks(f"function{SEPARATOR}", "\n```json\n", "\n```", "\n"),
    "deepseek-v3.1": _marks("", SEPARATOR, "", ""),
    "gemma": Family(_gemma, _loose_gemma, "<|tool_call>", joint=""),
}

# Those whose calls are JSON by themselves.
JSON_SYNTAXES = (None, "hermes", "llama3")


@dataclass
class CallRules:
    """`expression` is calls of at least one tool; `held_as_json` says of which tools, and why,
    calls are JSON behind `<tool_call>` although the family has another syntax."""

    expression: str
    held_as_json: dict[str, str] = field(default_factory=dict)


def call_rules(tools: Sequence[Tool], syntax: str | None, several: bool, rules: Rules) -> CallRules:
    """The rules of calls of `tools`, added to `rules`; of a syntax without a family's grammar
    those of Hermes."""
    if syntax == "llama3":
        return CallRules(json_calls(tools, "parameters", rules))
    family = FAMILIES.get(syntax or "")
    if family is None:
        return CallRules(_hermes(tools, several, rules))
    written: list[str] = []
    others: dict[str, str] = {}
    for tool in tools:
        try:
            written.append(rules.add("call", family.call(tool, rules)))
        except NotWritable as exc:
            others[tool.name] = str(exc)
    ways = []
    if written:
        ways.append(rules.add("block", any_call(family, written, several, rules)))
    if others:
        ways.append(_hermes([tool for tool in tools if tool.name in others], several, rules))
    return CallRules(rules.add("calls", " | ".join(ways)), others)


def any_call(family: Family, calls: Sequence[str], several: bool, rules: Rules) -> str:
    """The expression of a call of those, or of several; it begins with a literal."""
    call = rules.add("any_call", " | ".join(calls))
    parts = [quoted(family.opens)] if family.opens else []
    parts.append(call)
    if several:
        parts.append(f"({quoted(family.joint)} {call})*" if family.joint else f"{call}*")
    parts += [quoted(family.closes)] if family.closes else []
    return " ".join(parts)


def _hermes(tools: Sequence[Tool], several: bool, rules: Rules) -> str:
    body = json_calls(tools, "arguments", rules)
    call = rules.add("json_call", f'"<tool_call>\\n" {body} "\\n</tool_call>"')
    return rules.add("json_calls", f'{call} ("\\n" {call})*' if several else call)


def json_calls(tools: Sequence[Tool], word: str, rules: Rules) -> str:
    known: dict[str, Any] = {}
    forms = []
    for number, tool in enumerate(tools):
        schema = arguments_of(tool)
        arguments = placed(schema, schema, f"tool{number}", known)
        forms.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, word: arguments},
                "required": ["name", word],
                "additionalProperties": False,
            }
        )
    whole = forms[0] if len(forms) == 1 else {"anyOf": forms}
    told = {**whole, "$defs": known} if known else whole
    return rules.add("value", f"%json {written(told, CALL_OPTIONS)}")
