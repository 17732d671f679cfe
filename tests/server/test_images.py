"""Pictures in requests: read in the ways in which clients write them, wrong ones told by field."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4tui.chat.messages import Image, Message
from ds4tui.engine.sampling_defaults import SamplingDefaults
from ds4tui.errors import RequestError
from ds4tui.server.body import parse_object
from ds4tui.server.fields import Fields
from ds4tui.server.images import MAX_IMAGES, image_of, read_base64
from ds4tui.server.openai_chat import parse_chat

PNG = b"\x89PNG\r\n\x1a\n\xfb\xff\xfe shot"
TEXT = base64.b64encode(PNG).decode()
URI = f"data:image/png;base64,{TEXT}"


def read(content: Any, role: str = "user") -> Message:
    body = json.dumps({"messages": [{"role": role, "content": content}]}).encode()
    return parse_chat(Fields(parse_object(body)), SamplingDefaults(), 1000).messages[0]


def picture(url: Any = URI) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize("url", [URI, {"url": URI}, {"url": URI, "detail": "high"}])
def test_a_picture_is_a_text_or_an_object(url: Any) -> None:
    name = "messages[0].content[0].image_url" + (".url" if isinstance(url, dict) else "")
    assert read([picture(url)]) == Message("user", "", images=(Image(PNG, 0, name),))


def test_pictures_stand_where_they_stood_and_texts_only_are_kept_apart() -> None:
    content = [words("one"), words("two"), picture(), picture(), words("three"), picture()]
    message = read(content)
    assert message.text == "one\ntwothree"
    assert [image.at for image in message.images] == [7, 7, 12]
    assert [e if isinstance(e, str) else "*" for e in message.elements()] == [
        "one\ntwo", "*", "*", "three", "*",
    ]  # fmt: skip


def test_results_of_tools_hold_pictures() -> None:
    message = read([words("Done."), picture()], "tool")
    assert (message.role, message.text, len(message.images)) == ("tool", "Done.", 1)


@pytest.mark.parametrize(
    "uri",
    [
        URI,
        f"  {URI}\n",
        f"DATA:image/png;BASE64,{TEXT}",
        f"data:;base64,{TEXT}",
        f"data:image/png;name=a.png;base64,{TEXT}",
        f"data:application/octet-stream;base64,{TEXT}",
        f"data:image/png;base64,{TEXT.rstrip('=')}",
        f"data:image/png;base64,{TEXT[:7]}\r\n {TEXT[7:]}",
        f"data:image/png;base64,{TEXT.replace('+', '-').replace('/', '_')}",
        f"data:image/png;base64,{TEXT.replace('+', '%2B').replace('=', '%3D')}",
        "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG),
        TEXT,  # some clients leave the beginning out
    ],
)
def test_all_ways_to_write_it_are_the_same_file(uri: str) -> None:
    assert image_of(uri, "here", 3) == Image(PNG, 3, "here")


@given(data=st.binary(min_size=1, max_size=64), cut=st.integers(0, 80), safe=st.booleans())
def test_base64_of_any_alphabet_and_layout_comes_back(data: bytes, cut: int, safe: bool) -> None:
    text = (base64.urlsafe_b64encode if safe else base64.b64encode)(data).decode()
    assert read_base64(f"{text[:cut]}\n{text[cut:]}", "here") == data
    assert read_base64(text.rstrip("="), "here") == data


@pytest.mark.parametrize(
    ("url", "field", "said"),
    [
        ("https://example.com/a.png", "", "not fetched from the network"),
        ({"url": "HTTP://example.com/a.png"}, ".url", "not fetched from the network"),
        ("file:///etc/passwd", "", "not fetched from file: addresses"),
        ("data:image/png;base64", "", "no comma"),
        ("data:image/png;base64,", "", "is empty"),
        ("data:image/png;base64,a?b", "", "is not base64"),
        ("data:image/png;base64,abcde", "", "is not base64"),
        ("data:text/html;base64,aGk=", "", "'text/html', not a picture"),
        ("/home/me/shot.png", "", "is not base64"),
        ("aGVsbG8=", "", "is no data URI: 'aGVsbG8='"),
        ("", "", "is empty"),
        ({}, ".url", "must be given"),
        ({"url": 5}, ".url", "must be a string, not a number"),
        (5, "", "must be a data URI or an object with one, not a number"),
        ({"url": URI, "detail": "huge"}, ".detail", "one of auto, low, high and original"),
    ],
)
def test_what_is_no_picture_is_told_with_its_field(url: Any, field: str, said: str) -> None:
    with pytest.raises(RequestError) as raised:
        read([words("What is this?"), picture(url)])
    assert said in raised.value.message
    assert raised.value.param == f"messages[0].content[1].image_url{field}"
    assert "JSON" not in str(raised.value)


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_who_may_send_pictures_is_told(role: str) -> None:
    with pytest.raises(RequestError, match="hold no images") as raised:
        read([picture()], role)
    assert raised.value.param == "messages[0].content[0].type"


def test_there_is_a_limit_that_says_how_to_go_on() -> None:
    read([picture()] * MAX_IMAGES)
    with pytest.raises(RequestError, match="at most 1,024 are read") as raised:
        read([picture()] * (MAX_IMAGES + 1))
    assert "Leave out earlier ones" in raised.value.hint
