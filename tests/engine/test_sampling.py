"""Sampling against plain references, the odd logits, and frequencies with fixed seeds."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.sampling import Choice, Sampler, candidates
from ds4tui.errors import EngineError, RequestError
from tests.scale import scaled

GREEDY = SamplingParams(temperature=0.0)
NO_PROMPT = np.zeros(0, dtype=np.int64)


def pick(logits: Any, params: SamplingParams, prompt: Any = NO_PROMPT) -> Choice:
    return Sampler(params, np.asarray(prompt, dtype=np.int64)).pick(np.asarray(logits, np.float32))


def reference_candidates(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Steps 2 to 5 with plain loops and full sorts: probability by id."""
    best = max(logits)
    weights = [math.exp((x - best) / params.temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        total, running, nucleus = sum(weights[i] for i in order), 0.0, []
        for i in order:
            nucleus.append(i)
            running += weights[i]
            if running >= params.top_p * total:
                break
        order = nucleus
    order = [i for i in order if weights[i] >= params.min_p * weights[order[0]]]
    total = sum(weights[i] for i in order)
    return {i: weights[i] / total for i in order}


# Quarters: many ties, and sums that round alike in whatever order they are made.
some_logits = st.lists(st.integers(-12, 12).map(lambda n: n / 4), min_size=1, max_size=200)
some_counts = st.one_of(st.integers(0, 12), st.integers(0, 210))


@given(
    some_logits,
    st.sampled_from([0.25, 0.7, 1.0, 2.0]),
    some_counts,
    st.sampled_from([0.0, 0.05, 0.33, 0.77, 0.95, 1.0]),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
@settings(max_examples=scaled(200))
def test_the_candidates_are_the_references(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = reference_candidates(logits, params)
    ids, weights = candidates(np.array(logits), params)
    assert ids.tolist() == sorted(expected)
    shares = weights / weights.sum()
    np.testing.assert_allclose(shares, [expected[i] for i in ids.tolist()], rtol=1e-9)


def test_a_nucleus_may_be_wide() -> None:
    logits = np.random.default_rng(5).standard_normal(30_000)
    params = SamplingParams(temperature=1.0, top_p=0.9)
    ids, _ = candidates(logits, params)
    assert ids.tolist() == sorted(reference_candidates(logits.tolist(), params))
    assert len(ids) > 4096


def test_ties_at_the_edge_go_to_the_lower_ids() -> None:
    logits = np.array([1.0, 0.0, 0.0, 2.0, 0.0])
    for params in (SamplingParams(temperature=1.0, top_k=3), SamplingParams(1.0, top_p=0.84)):
        assert candidates(logits, params)[0].tolist() == [0, 1, 3]


def test_a_nucleus_that_just_reaches_its_share_is_enough() -> None:
    assert candidates(np.zeros(4), SamplingParams(top_p=0.5))[0].tolist() == [0, 1]


def test_greedy_takes_the_largest_and_the_lowest_id_of_equals() -> None:
    assert pick([0.0, 3.0, 1.0, 3.0], GREEDY).token_id == 1
    cold = SamplingParams(temperature=1e-320)
    assert pick([0.0, 1.0, 3.0, 2.0], cold).token_id == 2


def test_zero_top_p_and_top_k_of_one_are_greedy() -> None:
    logits = np.random.default_rng(0).standard_normal(500)
    best = int(logits.astype(np.float32).argmax())
    for params in (SamplingParams(top_p=0.0), SamplingParams(top_k=1), SamplingParams(min_p=1.0)):
        assert {pick(logits, replace(params, seed=seed)).token_id for seed in range(20)} == {best}


def frequencies(params: SamplingParams, logits: list[float], draws: int = 4000) -> np.ndarray:
    sampler = Sampler(params, NO_PROMPT)
    picked = [sampler.pick(np.array(logits, np.float32)).token_id for _ in range(draws)]
    return np.bincount(picked, minlength=len(logits)) / draws


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.5, seed=2),
        SamplingParams(temperature=2.0, seed=3, top_k=3),
        SamplingParams(temperature=1.0, seed=4, top_p=0.8),
        SamplingParams(temperature=1.5, seed=5, min_p=0.4),
    ],
)
def test_tokens_come_as_often_as_they_should(params: SamplingParams) -> None:
    logits = [1.0, 2.5, -1.0, 2.0, 0.0, -50.0]
    expected = np.zeros(len(logits))
    for token, share in reference_candidates(logits, params).items():
        expected[token] = share
    seen = frequencies(params, logits)
    # Five standard deviations of a binomial count; and what has no weight never comes.
    allowed = 5 * np.sqrt(expected * (1 - expected) / 4000) + 1e-12
    assert (np.abs(seen - expected) <= allowed).all()


def replies(params: SamplingParams, count: int = 30) -> list[int]:
    sampler, generator, tokens = Sampler(params, NO_PROMPT), np.random.default_rng(9), []
    for _ in range(count):
        tokens.append(sampler.pick(generator.standard_normal(100, np.float32)).token_id)
        sampler.accept(tokens[-1])
    return tokens


def test_the_same_seed_gives_the_same_tokens() -> None:
    seeded = SamplingParams(temperature=1.0, seed=7, frequency_penalty=0.5)
    assert replies(seeded) == replies(seeded)
    assert replies(seeded) != replies(replace(seeded, seed=8))
    assert replies(replace(seeded, seed=-3)) == replies(replace(seeded, seed=-3))
    unseeded = replace(seeded, seed=None)
    assert replies(unseeded) != replies(unseeded)


def test_logit_bias_is_added() -> None:
    logits = [0.0, 1.0, 2.0]
    assert pick(logits, replace(GREEDY, logit_bias=((0, 100.0),))).token_id == 0
    assert pick(logits, replace(GREEDY, logit_bias=((2, -100.0), (1, 0.5)))).token_id == 1
    assert pick(logits, replace(GREEDY, logit_bias=((0, 1.5), (0, 1.0)))).token_id == 0


def test_repetition_penalty_covers_prompt_and_reply_and_both_signs() -> None:
    params = replace(GREEDY, repetition_penalty=2.0)
    assert pick([4.0, 3.0], params, [0, -5]).token_id == 1  # 4/2 < 3; the image row is nothing
    assert pick([-1.0, -1.5], params, [0]).token_id == 1  # -1 x 2 < -1.5
    sampler = Sampler(params, np.array([0]))
    logits = np.array([4.0, 3.0, 1.6], np.float32)
    assert sampler.pick(logits).token_id == 1
    sampler.accept(1)
    assert sampler.pick(logits).token_id == 0  # 2, 1.5, 1.6
    assert pick([4.0, 3.0], GREEDY, [0]).token_id == 0


def test_frequency_counts_and_presence_does_not_and_the_prompt_is_not_covered() -> None:
    logits = np.array([2.0, 1.0], np.float32)
    frequency = Sampler(replace(GREEDY, frequency_penalty=0.4), np.array([0, 0, 0]))
    presence = Sampler(replace(GREEDY, presence_penalty=0.9), np.array([0, 0, 0]))
    picks: list[tuple[int, int]] = []
    for _ in range(4):
        picks.append((frequency.pick(logits).token_id, presence.pick(logits).token_id))
        frequency.accept(0)
        presence.accept(0)
    assert picks == [(0, 0), (0, 0), (0, 0), (1, 0)]
    strong = Sampler(replace(GREEDY, presence_penalty=1.5), NO_PROMPT)
    strong.accept(0)
    assert strong.pick(logits).token_id == 1


def reference_logprobs(logits: np.ndarray) -> np.ndarray:
    values = logits.astype(np.longdouble)
    return np.asarray(values - np.log(np.exp(values).sum()), dtype=np.float64)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_the_models_own_distribution(temperature: float) -> None:
    logits = np.random.default_rng(3).standard_normal(1000).astype(np.float32) * 3
    params = SamplingParams(
        temperature=temperature, top_k=4, logit_bias=((17, 50.0),), logprobs=5, seed=1
    )
    choice = pick(logits, params)
    expected = reference_logprobs(logits)
    assert choice.token_id == 17
    assert choice.logprob == pytest.approx(expected[17], abs=1e-9)
    best = sorted(range(1000), key=lambda i: (-expected[i], i))[:5]
    assert [i for i, _ in choice.top] == best
    np.testing.assert_allclose([p for _, p in choice.top], expected[best], atol=1e-9)


def test_logprobs_only_when_asked_for() -> None:
    choice = pick([0.0, 1.0], GREEDY)
    assert math.isnan(choice.logprob)
    assert choice.top == ()
    choice = pick([0.0, 1.0], replace(GREEDY, logprobs=0))
    assert choice.logprob == pytest.approx(-math.log(1 + math.exp(-1)))
    assert choice.top == ()
    assert len(pick([0.0, 1.0], replace(GREEDY, logprobs=20)).top) == 2


@pytest.mark.parametrize(
    "logits", [[math.nan, 1.0], [1.0, math.nan], [math.inf, 1.0], [-math.inf, -math.inf]]
)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logits_without_a_distribution_are_an_engine_error(
    logits: list[float], temperature: float
) -> None:
    with pytest.raises(EngineError, match="no distribution"):
        pick(logits, SamplingParams(temperature=temperature, logprobs=1))


def test_forbidden_tokens_never_come() -> None:
    logits = [-math.inf, 0.0, -math.inf, 0.0]
    params = SamplingParams(temperature=10.0, repetition_penalty=3.0, logprobs=4)
    for seed in range(50):
        choice = pick(logits, replace(params, seed=seed), [0, 1, 2])
        assert choice.token_id in (1, 3)
        assert [i for i, _ in choice.top] == [1, 3, 0, 2]
        assert choice.top[2][1] == -math.inf


class Always:
    """A generator that always draws the same number."""

    def __init__(self, number: float) -> None:
        self.random = lambda: number


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (1.0, 2)])
def test_draws_at_the_very_ends_find_a_token_that_has_weight(number: float, token: int) -> None:
    """0 is a number that is drawn; 1 is what a product may round up to."""
    sampler = Sampler(SamplingParams(temperature=1.0), NO_PROMPT)
    sampler._generator = Always(number)  # type: ignore[assignment]
    assert sampler.pick(np.array([-np.inf, 0.0, 1.0, -np.inf])).token_id == token


def test_a_bias_must_be_finite() -> None:
    for bias in (math.nan, -math.inf):
        with pytest.raises(RequestError, match="logit_bias"):
            SamplingParams(logit_bias=((1, 0.5), (0, bias)))
