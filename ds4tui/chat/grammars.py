"""The grammars of replies that must be JSON, or must call tools, in llguidance's Lark form.

Reasoning, where a model's template has it, comes first and is free; then the grammar holds.
Blanks are few by grammar: models that may write blanks for ever do. Knows neither the library
nor tokens.
"""

import json
from collections.abc import Sequence
from typing import Any

from ds4tui.chat.messages import Tool

# Between two parts of JSON: nothing, or blanks and a line's end with its indentation.
_BLANKS = r"[ ]{0,2}|\n[ ]{0,24}"
_JSON_OPTIONS = {"whitespace_pattern": _BLANKS}

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def json_reply(schema: dict[str, Any], thinks: bool = False, inside: bool = False) -> str:
    """A reply that is one JSON value of `schema`. `thinks` lets reasoning come before it;
    `inside` says that the prompt has begun that."""
    return _grammar(f"answer: LEAD %json {_json(schema)}\n", thinks, inside)


def tool_calls(
    tools: Sequence[Tool], several: bool, thinks: bool = False, inside: bool = False
) -> str:
    """A reply that calls at least one of `tools`, in the form of Hermes and Qwen."""
    forms = [_call_schema(tool) for tool in tools]
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    more = ' ("\\n" call)*' if several else ""
    rules = (
        f"answer: LEAD call{more}\n"
        'call: "<tool_call>\\n" body "\\n</tool_call>"\n'
        f"body: %json {_json(schema)}\n"
    )
    return _grammar(rules, thinks, inside)


def _call_schema(tool: Tool) -> dict[str, Any]:
    parameters = json.loads(tool.parameters) if tool.parameters else {}
    arguments = parameters if parameters.get("type") == "object" else {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _grammar(answer: str, thinks: bool, inside: bool) -> str:
    rules = answer + "LEAD: /[ \\n]{0,2}/\n"
    if inside:
        return "start: thought answer\nthought[lazy]: /(?s:.*)<\\/think>/\n" + rules
    if thinks:
        thought = "thought[lazy]: /<think>(?s:.*)<\\/think>/\n"
        return "start: thought answer | answer\n" + thought + rules
    return "start: answer\n" + rules


def _json(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _JSON_OPTIONS}, ensure_ascii=True)
