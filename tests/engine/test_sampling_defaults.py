"""Whose value is used where a request leaves one open."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.sampling_defaults import OwnSampling, SamplingDefaults, of_metadata
from ds4tui.errors import RequestError
from tests.scale import scaled

OWN = OwnSampling(
    {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}, "its authors"
)


def test_a_model_that_nobody_knows_is_sampled_with_the_houses_values() -> None:
    defaults = SamplingDefaults()
    assert defaults.params() == SamplingParams(temperature=0.7, min_p=0.05)
    assert defaults.words() == "temperature 0.7, min_p 0.05 (ds4tui's default)"


def test_the_request_comes_before_the_person_and_the_person_before_the_authors() -> None:
    chosen = {"temperature": 0.3, "max_tokens": 9}
    defaults = SamplingDefaults(chosen, OWN, {"temperature": "--temperature"})
    assert defaults.params() == SamplingParams(
        temperature=0.3, top_p=0.95, top_k=20, repetition_penalty=1.05, max_tokens=9
    )
    asked = defaults.params(temperature=0.9, top_k=0)
    assert (asked.temperature, asked.top_k, asked.top_p) == (0.9, 0, 0.95)
    assert defaults.words() == (
        "temperature 0.3 (--temperature); "
        "top_k 20, top_p 0.95, repetition_penalty 1.05 (its authors)"
    )


def test_a_recommendation_without_a_temperature_is_added_to_the_houses() -> None:
    defaults = SamplingDefaults(own=OwnSampling({"top_k": 40}, "its authors"))
    assert defaults.params() == SamplingParams(temperature=0.7, min_p=0.05, top_k=40)


@pytest.mark.parametrize("chosen", [True, False])
def test_temperature_0_is_plain_greedy(chosen: bool) -> None:
    """The authors' penalty would change what is likeliest."""
    greedy: dict[str, Any] = {"temperature": 0.0}
    defaults = SamplingDefaults(greedy if chosen else {}, OWN)
    params = defaults.params(**({} if chosen else greedy))
    assert params == SamplingParams(temperature=0.0)
    assert SamplingDefaults({"repetition_penalty": 1.2, **greedy}, OWN).params() == SamplingParams(
        temperature=0.0, repetition_penalty=1.2
    )


def test_what_a_request_asks_for_is_checked() -> None:
    with pytest.raises(RequestError, match="top_p must be between"):
        SamplingDefaults(own=OWN).params(top_p=1.5)


def test_a_files_own_keys_are_read() -> None:
    values: dict[str, Any] = {
        "temp": float(np.float32(0.6)),
        "top_k": 20,
        "top_p": float(np.float32(0.95)),
        "penalty_repeat": float(np.float32(1.05)),
        "min_p": 0,
        "penalty_last_n": 64,
        "mirostat": 0,
    }
    own = of_metadata({f"general.sampling.{key}": value for key, value in values.items()})
    assert own.values == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.05,
    }  # fmt: skip
    assert own.source == "the file's general.sampling"
    assert of_metadata({"general.name": "x"}) == OwnSampling()


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())
KEYS = ("temp", "top_k", "top_p", "min_p", "penalty_repeat", "penalty_freq", "penalty_present")


@settings(max_examples=scaled(100), deadline=None)
@example({"top_k": float("inf"), "temp": 0.5})
@example({"top_k": float("nan")})
@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING))
def test_a_file_with_nonsense_in_its_keys_can_still_be_sampled(values: dict[str, Any]) -> None:
    own = of_metadata({f"general.sampling.{key}": value for key, value in values.items()})
    SamplingDefaults(own=own).params()
