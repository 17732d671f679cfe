"""From logits to a token. NumPy only; knows nothing of text, stop strings or jobs.

The order is that of transformers' logits warpers:
  0. tokens that a constraint does not allow here are out;
  1. logits: + logit_bias; repetition_penalty on what prompt and reply hold (a positive logit is
     divided by it, a negative one multiplied); - frequency_penalty x count - presence_penalty
     on what the reply holds (OpenAI's definition);
  2. temperature (0: the largest logit, ties to the lowest id, and nothing below applies);
  3. top_k: the k most probable, ties to lower ids; 4. top_p: the smallest set of the most
     probable whose share of what 3 left reaches p; 5. min_p: those at least min_p times as
     probable as the best;
  6. one uniform number picks among what is left, in the order of ids.
So a pick depends on the probabilities and the seed alone, not on how anything was sorted.

Log-probabilities are those of the model's own distribution: before all of this.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import EngineError

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Choice:
    """A picked token. `logprob` is nan and `top` empty unless asked for; `top` holds (token id,
    log-probability) of the most probable tokens, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Matcher(Protocol):
    """What may come next (engine.constraint.Matcher is one)."""

    def allowed(self, vocab_size: int) -> npt.NDArray[np.bool_]: ...
    def accept(self, token_id: int) -> None: ...


class Sampler:
    """Picks the tokens of one reply. The same seed, prompt and logits give the same tokens.

    `prompt_ids` is int [T]; negative ids (image rows) count for nothing. A None seed is drawn
    from the system. With a `matcher` only what it allows is picked.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: npt.NDArray[np.int64],
        matcher: Matcher | None = None,
    ) -> None:
        self._params = params
        self._matcher = matcher
        self._generator = np.random.Generator(np.random.PCG64(_entropy(params.seed)))
        self._seen: set[int] = set()
        if params.repetition_penalty != 1.0:
            self._seen.update(np.unique(prompt_ids[prompt_ids >= 0]).tolist())
        self._counts: dict[int, int] = {}

    def accept(self, token_id: int) -> None:
        """Count a token of the reply, for the penalties and the constraint. Raises EngineError if
        the constraint does not allow it."""
        if self._matcher is not None:
            self._matcher.accept(token_id)
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        self._seen.add(token_id)

    def pick(self, logits: npt.NDArray[Any]) -> Choice:
        """Choose by float [vocab] logits; -inf forbids a token.

        Raises EngineError for logits that no distribution has: NaN, +inf, or all -inf; and if a
        constraint leaves none.
        """
        own = np.asarray(logits, dtype=np.float64)
        _require_distribution(own)
        adjusted = self._adjusted(self._allowed(own))
        if self._params.temperature == 0:
            token = int(adjusted.argmax())  # the first of equals: the lowest id
        else:
            ids, weights = candidates(adjusted, self._params)
            token = int(ids[self._draw(weights)])
        return self._choice(token, own)

    def _allowed(self, own: Doubles) -> Doubles:
        if self._matcher is None:
            return own
        allowed = np.where(self._matcher.allowed(len(own)), own, -np.inf)
        if not np.isfinite(allowed.max()):
            raise EngineError(
                "The form that was asked for leaves the model no token to go on with.",
                "Simplify the schema, or send the request without it.",
            )
        return allowed

    def _adjusted(self, own: Doubles) -> Doubles:
        params = self._params
        repeats = params.repetition_penalty != 1.0 and self._seen
        counts = (params.frequency_penalty or params.presence_penalty) and self._counts
        if not (params.logit_bias or repeats or counts):
            return own
        adjusted = own.copy()
        for token, bias in params.logit_bias:
            adjusted[token] += bias
        if repeats:
            seen = np.fromiter(self._seen, dtype=np.intp)
            values, penalty = adjusted[seen], params.repetition_penalty
            adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
        if counts:
            tokens = np.fromiter(self._counts.keys(), dtype=np.intp)
            times = np.fromiter(self._counts.values(), dtype=np.float64)
            adjusted[tokens] -= params.frequency_penalty * times + params.presence_penalty
        return adjusted

    def _draw(self, weights: Doubles) -> int:
        cumulative = weights.cumsum()
        point = self._generator.random() * cumulative[-1]
        place = int(cumulative.searchsorted(point, side="right"))
        # The product may round up to the total, beyond every token.
        return place if place < len(weights) else int(np.flatnonzero(weights)[-1])

    def _choice(self, token: int, own: Doubles) -> Choice:
        alternatives = self._params.logprobs
        if alternatives is None:
            return Choice(token, float("nan"), ())
        best = own.max()
        logprobs = own - (best + np.log(np.exp(own - best).sum()))
        top = _descending(logprobs, _largest(logprobs, alternatives))
        return Choice(
            token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in top)
        )


def _entropy(seed: int | None) -> int | None:
    return None if seed is None else seed % 2**64  # clients send negative seeds too


def candidates(logits: Doubles, params: SamplingParams) -> tuple[Indices, Doubles]:
    """What may be picked at a temperature above 0: ids, ascending, and float64 weights, 1 for
    the most probable."""
    with np.errstate(over="ignore"):  # a temperature near 0 may send the others to -inf
        scaled = (logits - logits.max()) / params.temperature
    ids = _largest(scaled, params.top_k) if 0 < params.top_k < len(scaled) else None
    weights = np.exp(scaled if ids is None else scaled[ids])
    if params.top_p < 1.0:
        ids, weights = _only(_nucleus(weights, params.top_p), ids, weights)
    if params.min_p > 0.0:
        ids, weights = _only(np.flatnonzero(weights >= params.min_p), ids, weights)
    return np.arange(len(weights)) if ids is None else ids, weights


def _only(kept: Indices, ids: Indices | None, weights: Doubles) -> tuple[Indices, Doubles]:
    """What is kept of `ids`, None for all there are (indexing with all of them takes longer
    than the rest of a pick)."""
    return kept if ids is None else ids[kept], weights[kept]


def _nucleus(weights: Doubles, share: float) -> Indices:
    """Indices, ascending, of the fewest largest weights that make up `share` of the sum."""
    total = weights.sum()
    # All weights below (1 - share) x mean together are less than 1 - share of the sum, so the
    # others reach it: few need sorting. Half of that bound, since sums are rounded.
    others = np.flatnonzero(weights >= (1 - share) * total / len(weights) / 2)
    best = _descending(weights, others)
    reached = int(weights[best].cumsum().searchsorted(share * total, side="left"))
    return np.sort(best[: reached + 1])


def _largest(values: Doubles, count: int) -> Indices:
    """Indices, ascending, of the `count` largest values, ties to lower indices; no full sort."""
    if count >= len(values) or not count:
        return np.arange(min(count, len(values)))
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)
    return np.sort(np.concatenate((above, equal[: count - len(above)])))


def _descending(values: Doubles, indices: Indices) -> Indices:
    """`indices` (ascending) by falling value, ties to lower indices."""
    order: Indices = indices[np.argsort(-values[indices], kind="stable")]
    return order


def _require_distribution(logits: Doubles) -> None:
    best = logits.max()
    if not np.isfinite(best):  # max is NaN where any logit is
        raise EngineError(
            f"The model's logits are no distribution: the largest is {best}.",
            "The weights may be damaged, or the device failed; the state was given up.",
        )
