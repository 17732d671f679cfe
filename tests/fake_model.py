"""A model and a tokenizer without weights.

`FakeModel`'s logits are a function of the hash of every row that its state really holds (id and
position, layer by layer), so reuse is provable: a state that is wrong anywhere gives other
logits.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

BOS, END_OF_TURN = 256, 257
ROLE_IDS = {"system": 258, "user": 259, "assistant": 260, "tool": 261}
CONTROL_TEXTS = {
    "<bos>": BOS,
    "<end>": END_OF_TURN,
    **{f"<{role}>": token for role, token in ROLE_IDS.items()},
}
BYTE_VOCAB = 256 + len(CONTROL_TEXTS)


class ByteTokenizer:
    """Token i < 256 is the byte i; six control tokens follow. Looks like engine Tokenizer."""

    vocab_size = BYTE_VOCAB
    bos_id: int | None = BOS
    eos_id: int | None = END_OF_TURN
    add_bos = False
    control_texts = CONTROL_TEXTS
    user_defined_texts: dict[str, int] = {}  # noqa: RUF012

    def encode(self, text: str, *, add_bos: bool = False, special: bool = False) -> list[int]:
        ids = [BOS] if add_bos and self.add_bos else []
        while text:
            found = next((t for t in CONTROL_TEXTS if special and text.startswith(t)), None)
            ids += [CONTROL_TEXTS[found]] if found else text[0].encode()
            text = text[len(found) :] if found else text[1:]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        names = {token: name for name, token in CONTROL_TEXTS.items()}
        parts = (bytes([i]) if i < 256 else b"" if skip_special else names[i].encode() for i in ids)
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    first_bytes = token_bytes

    def is_control(self, token_id: int) -> bool:
        return token_id >= 256

    def least_tokens(self, text: str) -> int:
        return len(text.encode("utf-8", "replace"))

    def has_silent(self, ids: Iterable[int]) -> bool:
        return any(map(self.is_control, ids))


class FakeModel:
    """Looks like engine Model. `before_forward(rows)` runs before each forward pass: tests wait,
    count or raise there. `chunks` are the row counts of all passes so far. `choose(length)` may
    name the token that greedy sampling takes after `length` rows (see `scripted`). `layer_types`
    are classes of fake_state.py, by default two append-only ones."""

    architecture = "fake"
    weights_bytes = 1000
    compute_path = "fake: hash of the prefix"

    def __init__(
        self,
        vocab_size: int = BYTE_VOCAB,
        context_tokens: int = 1024,
        layer_types: Sequence[Any] = (),
    ) -> None:
        self.vocab_size = vocab_size
        self.context_tokens = context_tokens
        self.layer_types = layer_types
        self.before_forward: Callable[[Any], None] = lambda rows: None
        self.between_layers: Callable[[], None] = lambda: None
        self.choose: Callable[[int], int | None] = lambda length: None
        self.bad_logits: float | None = None  # all logits are this
        self.chunks: list[int] = []

    def new_state(self) -> Any:
        from ds4tui.engine.state import ModelState  # mlx comes with it
        from tests.fake_state import FakeLayer

        types = self.layer_types or (FakeLayer, FakeLayer)
        return ModelState([layer_type() for layer_type in types])

    def kv_bytes(self, tokens: int) -> int:
        return 32 * tokens

    def forward(self, rows: Any, state: Any) -> npt.NDArray[np.float32] | None:
        self.before_forward(rows)
        new = list(zip(rows.ids.tolist(), rows.positions.tolist(), strict=True))
        first, *others = state.layers
        first.feed(new)
        self.between_layers()
        for layer in others:
            layer.feed(new)
        self.chunks.append(len(new))
        if rows.logits == "none":
            return None
        if self.bad_logits is not None:
            return np.full((1, self.vocab_size), self.bad_logits, np.float32)
        return self._logits(state)[None]

    def _logits(self, state: Any) -> npt.NDArray[np.float32]:
        hasher = xxhash.xxh3_64()
        for layer in state.layers:
            hasher.update(layer.content().astype("<i8").tobytes())
        generator = np.random.default_rng(hasher.intdigest())
        logits = generator.standard_normal(self.vocab_size, dtype=np.float32)
        chosen = self.choose(state.layers[0].length)
        if chosen is not None:
            logits[chosen] = 50.0
        return logits


def scripted(prompt_tokens: int, reply: Sequence[int]) -> Callable[[int], int | None]:
    """For FakeModel.choose: after a prompt of that length, greedy sampling gives `reply`."""

    def choose(length: int) -> int | None:
        place = length - prompt_tokens
        return reply[place] if 0 <= place < len(reply) else None

    return choose
