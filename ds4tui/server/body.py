"""JSON in and out: bounded bodies, strict numbers, no character that breaks a line.

Reading accepts UTF-8 JSON objects only; what Python's parser would let pass (NaN, Infinity)
is refused. Writing escapes the three characters that are line ends to Unicode though not to
JSON, because many clients split an event stream with a Unicode-aware splitlines.
"""

import json
import math
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, NoReturn

from starlette.requests import Request

from ds4tui.errors import RequestError

# An agent's whole history with some files in it is a few MiB; this leaves room for a hundred
# screenshots. While it is read a body takes some four times its size: what takes more are many
# small values, so they are counted before anything is made of them.
MAX_BODY_BYTES = 128 * 2**20
MAX_CONTAINERS = 1_000_000  # objects and arrays take 60 bytes each and more
MAX_VALUES = 8_000_000
# Deeper than any schema; templates and schemas are walked by recursion.
MAX_DEPTH = 100

# Python takes time with the square of the digits, and refuses to read more than 4300.
MAX_DIGITS = 1000

_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class BodyTooLarge(RequestError):
    http_status = 413


class NotJson(RequestError):
    http_status = 415


def require_json(request: Request) -> None:
    """Raises NotJson if the body is called anything else: what a page may send anywhere without
    asking (a form, plain text) is refused. A body that is called nothing passes."""
    named = request.headers.get("content-type")
    if named is None:
        return
    kind = named.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise NotJson(
            f"The body must be JSON and be called so, not {kind[:100]!r}.",
            hint="Send the header 'Content-Type: application/json' "
            "(with curl: -H 'Content-Type: application/json').",
        )


async def read_body(request: Request) -> bytes:
    """The raw body. Raises BodyTooLarge over MAX_BODY_BYTES and starlette's ClientDisconnect if
    the client leaves before it has sent all."""
    received = bytearray()
    # Closed here and now: a generator left to the garbage collector outlives its request.
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            received += chunk
            if len(received) > MAX_BODY_BYTES:
                # The server swallows what still comes, so the client does see this answer.
                raise BodyTooLarge(
                    f"The request body is larger than {MAX_BODY_BYTES / 2**20:,.0f} MiB.",
                    hint="Send less: leave earlier images out, or send them smaller.",
                )
    return bytes(received)


def parse_object(body: bytes) -> dict[str, Any]:
    """`body` as a JSON object. Raises RequestError that says what is wrong with it."""
    _require_few(body)
    try:
        text = body.decode("utf-8-sig")
        value = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole
        )
    except RequestError:
        raise
    except UnicodeDecodeError as exc:
        raise RequestError(f"The body is not UTF-8: byte {exc.start} is wrong.") from exc
    except RecursionError as exc:
        raise RequestError("The body's JSON is nested too deeply.") from exc
    except ValueError as exc:
        raise RequestError(f"The body is not valid JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise RequestError(f"The body must be a JSON object, not {kind_of(value)}.")
    _require_shallow(value)
    return value


def _require_few(body: bytes) -> None:
    """Brackets and commas in texts count, too: nobody writes so many of them."""
    if body.count(b"[") + body.count(b"{") > MAX_CONTAINERS or body.count(b",") > MAX_VALUES:
        raise BodyTooLarge(
            f"The body's JSON has too many parts: at most {MAX_CONTAINERS:,} objects and arrays, "
            f"and {MAX_VALUES:,} values.",
            hint="Send less.",
        )


def _require_shallow(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for each in level
            for part in (each.values() if isinstance(each, dict) else each)
            if isinstance(part, dict | list)
        ]
        if not level:
            return
    raise RequestError("The body's JSON is nested too deeply.")


def _refuse_constant(word: str) -> NoReturn:
    raise RequestError(f"The body is not valid JSON: {word} is not a JSON number.")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise RequestError(f"The number {digits[:40]} is too large.")
    return value


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise RequestError(f"The number {digits[:40]}... is too large.")
    return int(digits)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """`value` as one line of UTF-8 JSON. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Outside strings JSON has ASCII only, so escaping these anywhere is escaping in strings.
    return text.translate(_LINE_ENDS).encode("utf-8", "replace")


def finite(value: Any) -> Any:
    """`value` with NaN and infinities, which JSON cannot hold, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def kind_of(value: object) -> str:
    """What a JSON value is, in JSON's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
