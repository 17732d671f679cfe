"""What the follower takes for an object is what Python's own reader takes for one."""

import json
import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.chat.json_follower import JsonFollower, NotJson
from tests.scale import scaled


def follow(text: str) -> str:
    """ "whole", "more" where an object is not complete, "wrong" or "too much"."""
    follower = JsonFollower()
    for place, character in enumerate(text):
        try:
            follower.feed(character)
        except NotJson:
            return "wrong"
        if follower.is_done:
            return "whole" if place == len(text) - 1 else "too much"
    return "more"


def refuse(word: str) -> None:
    raise ValueError(word)


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, strict=False, parse_constant=refuse), dict)
    except ValueError:
        return False


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip
objects = st.dictionaries(st.text(max_size=4), values, max_size=4)


@settings(max_examples=scaled(500), deadline=None)
@given(value=objects, seed=st.integers(0, 2**32), indent=st.sampled_from([None, 1]))
@example(value={"a": -0.5e-7, "b": [1, []], "": {"": {}}}, seed=0, indent=1)
def test_objects_are_followed_to_their_last_character(
    value: dict[str, object], seed: int, indent: int | None
) -> None:
    draw = random.Random(seed)
    text = json.dumps(value, indent=indent, ensure_ascii=draw.random() < 0.5)
    assert follow(text) == "whole"
    assert follow(text[: draw.randrange(len(text))]) == "more"
    for _ in range(8):
        at = draw.randrange(len(text))
        other = draw.choice('{}[]",:\\ue+-.01tfn \n')
        changed = draw.choice((text[:at] + other + text[at + 1 :], text[:at] + text[at + 1 :]))
        assert (follow(changed.rstrip()) == "whole") == is_object(changed)


@settings(max_examples=scaled(300), deadline=None)
@given(value=objects)
def test_keys_and_values_of_the_outermost_object_are_told(value: dict[str, object]) -> None:
    text = json.dumps(value, indent=1)
    follower = JsonFollower()
    found: dict[str, str] = {}
    ended: list[str] = []
    for character in text:
        follower.feed(character)
        if follower.in_value:
            found[follower.key] = found.get(follower.key, "") + character
        if follower.value_ended:
            ended.append(follower.key)
    assert {key: json.loads(part) for key, part in found.items()} == value
    assert ended == list(value)


def test_depth_and_length_are_bounded() -> None:
    assert follow('{"a": ' + "[" * 64) == "wrong"
    assert follow('{"a": ' + "[" * 63) == "more"
    assert follow('{"a": ' + "1" * 500) == "wrong"
