"""Bodies: what is JSON, what is too much, and writing that no client splits wrongly."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.errors import RequestError
from ds4tui.server.body import finite, json_bytes, parse_object
from tests.scale import scaled

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": 1} x', "Extra data"),
        (b"[]", "must be a JSON object, not an array"),
        (b"null", "not null"),
        (b'"text"', "not a string"),
        (b"1.5", "not a number"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1e999}', "1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "99... is too large"),
        (b'{"a": "\xff"}', "not UTF-8: byte 7"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' * 200_000, "nested too deeply"),
        (b"\x1f\x8b\x08\x00", "not UTF-8"),
        (b'{"a": "\n"}', "Invalid control character"),
    ],
)
def test_a_wrong_body_is_told_what_is_wrong(body: bytes, said: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_object(body)
    assert said in str(raised.value)


def test_a_byte_order_mark_is_no_content() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@settings(max_examples=scaled(100), deadline=None)
@given(st.dictionaries(st.text(), JSON))
def test_what_is_written_reads_back_and_is_one_line(value: dict[str, object]) -> None:
    written = json_bytes(value)
    text = written.decode()
    assert json.loads(text) == value
    assert len(text.splitlines()) == 1


def test_a_lone_surrogate_can_be_written() -> None:
    assert json_bytes({"a": "\ud800"}) == b'{"a":"?"}'


def test_numbers_that_json_lacks_become_null() -> None:
    value = {"a": float("inf"), "b": [float("nan"), 1.5], "c": (1, -float("inf")), "d": "x"}
    assert finite(value) == {"a": None, "b": [None, 1.5], "c": [1, None], "d": "x"}
