"""The form of a reply that a request asks for, which the dialects write in different places."""

import json

from ds4tui.chat.grammars import ANY_OBJECT, AnswerFormat
from ds4tui.server.fields import Fields

_NAME_MAX = 64


def any_object(param: str) -> AnswerFormat:
    return AnswerFormat(ANY_OBJECT, "a JSON object", param)


def of_schema(holder: Fields, schema: Fields) -> AnswerFormat:
    """`holder` has the `schema`, and a name if the client gave it one."""
    name = (holder.text("name") or "")[:_NAME_MAX]
    what = f"the schema {name!r}" if name else "the schema"
    return AnswerFormat(json.dumps(schema.mapping()), what, holder.path("schema"))
