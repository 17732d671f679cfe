"""Replies that must follow a grammar: which tokens may come next, by llguidance.

A grammar is compiled on the thread of whoever asks, so that a wrong one is told before work
starts; each job then has a matcher of its own on the engine thread. A mask costs some ten
microseconds a token. Needs no mlx.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import llguidance
import numpy as np
import numpy.typing as npt

from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import EngineError, RequestError

Mask = npt.NDArray[np.bool_]


class GrammarTokens:
    """A vocabulary as grammars see it: bytes for all tokens but control tokens, which no text of
    a grammar matches, and `end_ids`, which may come where the grammar is satisfied. Thread-safe;
    built at first use, in up to half a second."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = sorted(end_ids)
        self._lock = threading.Lock()

    @property
    def library(self) -> llguidance.LLTokenizer:
        with self._lock:
            return self._library

    @cached_property
    def _library(self) -> llguidance.LLTokenizer:
        if not self._end_ids:
            raise RequestError("This model has no token that ends a reply, so none can be shaped.")
        wrapped = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self._end_ids))
        return llguidance.LLTokenizer(wrapped, eos_token=self._end_ids)


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, end_ids: list[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = end_ids[0]
        self.bos_token_id = tokenizer.bos_id
        ids = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = sorted({*filter(tokenizer.is_control, ids), *end_ids})

    def __call__(self, text: str | bytes) -> list[int]:
        # What a grammar forces is told as these tokens, so user-defined ones must be among them.
        spelt = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        ids: list[int] = []
        for part in self._tokenizer.split(spelt, control=False):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._tokenizer.encode_plain(part, continues=True).tolist()
        return ids


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a reply must be: a `grammar` in llguidance's form, `what` in words for people."""

    grammar: str
    what: str
    tokens: GrammarTokens

    @classmethod
    def of(cls, grammar: str, what: str, tokens: GrammarTokens, param: str) -> "Constraint":
        """Raises RequestError, of the field `param`, for a grammar that cannot be used."""
        check = llguidance.LLMatcher.validate_grammar_with_warnings
        is_wrong, problems = check(grammar, tokens.library)
        if is_wrong:
            raise RequestError(
                f"{param}: {what} cannot be required of a reply: {_shortened(problems[0])}",
                param,
                "Simplify the schema, or leave the field out and ask for it in words.",
            )
        return cls(grammar, what, tokens)

    def matcher(self) -> "Matcher":
        return Matcher(self)


class Matcher:
    """Follows one reply. For one thread."""

    def __init__(self, constraint: Constraint) -> None:
        self._what = constraint.what
        self._library = llguidance.LLMatcher(
            constraint.tokens.library, constraint.grammar, log_level=0
        )

    def allowed(self, vocab_size: int) -> Mask:
        """bool [vocab_size]: what may come next; ids beyond the vocabulary (padding of a model's
        output) never. Raises EngineError if the grammar became too complex to follow."""
        bits = np.frombuffer(self._library.compute_bitmask(), dtype=np.uint8)
        self._require_sound()
        mask = np.unpackbits(bits, bitorder="little")[:vocab_size].astype(np.bool_)
        return np.pad(mask, (0, vocab_size - len(mask)))

    def accept(self, token_id: int) -> None:
        """Go on with a token that was allowed. Raises EngineError for one that was not."""
        self._library.consume_token(token_id)
        self._require_sound()

    @property
    def is_satisfied(self) -> bool:
        """Whether the reply may end here."""
        return self._library.is_accepting()

    def _require_sound(self) -> None:
        if self._library.is_error():
            problem = _shortened(self._library.get_error())
            raise EngineError(
                f"The reply could not be held to {self._what}: {problem}",
                "Simplify the schema, or send the request without it.",
            )


def _shortened(problem: str) -> str:
    first = problem.strip().partition("\n")[0]
    return first if len(first) <= 300 else f"{first[:300]}…"
