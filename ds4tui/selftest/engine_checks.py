"""The reader, the tokenizer, the model and the session on a tiny model of this machine's making."""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ds4tui.cache.timeline import Timeline
from ds4tui.selftest.checks import Check, Wrong, expect

if TYPE_CHECKING:
    from ds4tui.engine.models.registry import Model
    from ds4tui.engine.session import Session
    from ds4tui.kernels.choice import Twin

Floats = npt.NDArray[np.float32]

# Beside the largest logit: sums in another order, of float32 or of float16 activations.
TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2

PROMPT_TOKENS, DECODE_TOKENS, KEPT_TOKENS = 200, 24, 77

TEXTS = (
    "",
    "the other thing there: 1000 + 200.",
    "  two blanks\n\n\tand a tab \r\n",
    "Grüße, мир, 世界, שלום",
    "👩‍👩‍👧 e\u0301 \u0000 \u2028",
    "<|im_end|> is text when people write it",
)


class TinyModel:
    """The file, written when it is first asked for, and what is made of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def path(self) -> Path:
        from ds4tui.selftest.tiny_model import write_tiny_model

        path = self._folder / "tiny.gguf"
        self.written = write_tiny_model(path)
        return path

    @cached_property
    def model(self) -> "Model":
        from ds4tui.engine.gguf import GGUFFile
        from ds4tui.engine.models.registry import load_model
        from ds4tui.engine.paging import LEFT_OPEN

        with GGUFFile.open(self.path) as gguf:
            return load_model(gguf, LEFT_OPEN)

    @cached_property
    def reference(self) -> "Model":
        """The same file through plain MLX."""
        from ds4tui.engine.gguf import GGUFFile
        from ds4tui.engine.models.registry import family_of
        from ds4tui.kernels import choice

        plain = choice.TwinChoice({"DS4TUI_KERNELS": "reference"}, choice.current().device)
        with GGUFFile.open(self.path) as gguf:
            family = family_of(gguf)
            config = family.config(gguf)
            return family.load(config, gguf, plain.path(), config.context_tokens)

    def session(self) -> "Session":
        from ds4tui.engine.session import Session

        return Session(self.model)


def twin_checks() -> Iterator[Check]:
    """One for each twin of this device; one that cannot be made here is no failure."""
    from ds4tui.kernels.choice import TWINS

    for twin in TWINS.values():
        if twin.device == _device():
            yield Check(
                f"{twin.operation} of {twin.name} against the reference", partial(_twin, twin)
            )


def _device() -> str:
    from ds4tui.kernels import choice

    return choice.current().device


def _twin(twin: "Twin") -> str:
    """Checked anew, whatever was found when the process chose its twins."""
    from ds4tui.kernels.cpu.native.build import Unavailable

    try:
        wrong = twin.check()
    except Unavailable as exc:
        return f"not to be had here: {exc}"
    expect(not wrong, wrong)
    return ""


def engine_checks(tiny: TinyModel) -> Iterator[Check]:
    yield Check("a GGUF written by the gguf package and read", lambda: _reads(tiny))
    yield Check("text to tokens and back", lambda: _tokenizes(tiny))
    yield Check("a model against the plain reference", lambda: _computes(tiny))
    yield Check("the same again, bit for bit", lambda: _repeats(tiny))
    yield Check("rewound, bit for bit", lambda: _restores(tiny))
    yield Check("rewound and gone on, against a cold run", lambda: _forks(tiny))


def _reads(tiny: TinyModel) -> str:
    from ds4tui.engine.gguf import GGUFFile

    with GGUFFile.open(tiny.path) as gguf:
        read = gguf.tensors
        expect(read.keys() == tiny.written.keys(), f"other tensors: {sorted(read)}")
        for name, (raw, kind) in tiny.written.items():
            expect(int(read[name].ggml_type) == int(kind), f"{name}: {read[name].ggml_type}")
            same = np.array_equal(gguf.raw(name).reshape(-1), raw.reshape(-1))
            expect(same, f"the bytes of {name} are others")
        kinds = {info.ggml_type.name for info in read.values()}
    return f"{len(read)} tensors of {', '.join(sorted(kinds))}"


def _tokenizes(tiny: TinyModel) -> str:
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.engine.tokenizer import Tokenizer

    with GGUFFile.open(tiny.path) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf)
    count = 0
    for text in TEXTS:
        ids = tokenizer.encode(text)
        back = tokenizer.decode(ids)
        expect(back == text, f"{text!r} became {back!r}")
        expect(not set(ids) & set(tokenizer.control_texts.values()), f"{text!r} gave a control")
        count += len(ids)
    trusted = tokenizer.encode("<|im_end|>", special=True)
    expect(trusted == [tokenizer.control_texts["<|im_end|>"]], "no control token where trusted")
    return f"{len(TEXTS)} texts, {count} tokens"


def _computes(tiny: TinyModel) -> str:
    from ds4tui.engine.session import Session

    ids = _prompt(tiny)
    theirs = _walked(Session(tiny.reference), ids)
    ours = _walked(tiny.session(), ids)
    gap = _gap(ours, theirs)
    tolerance = HALF_TOLERANCE if _device() == "gpu" else TOLERANCE
    expect(gap <= tolerance, f"differs by {gap:.2g} of the largest logit (at most {tolerance:g})")
    return f"{tiny.model.compute_path.split('; ')[-1]}: differs by {gap:.1g} of the largest logit"


def _repeats(tiny: TinyModel) -> str:
    ids = _prompt(tiny)
    first, second = (_walked(tiny.session(), ids) for _ in range(2))
    expect(np.array_equal(first, second), "two cold runs of one prompt differ")
    return f"{PROMPT_TOKENS} tokens prefilled, {DECODE_TOKENS} decoded, twice"


def _restores(tiny: TinyModel) -> str:
    """What a session keeps of a prompt is what it was when it was first reached."""
    ids, session = _prompt(tiny)[:PROMPT_TOKENS], tiny.session()
    before = _prefilled(session, ids)
    for token in _prompt(tiny)[PROMPT_TOKENS:]:
        session.append(int(token))
    after = _prefilled(session, ids)
    expect(len(session.timeline) == len(ids), f"{len(session.timeline)} rows are resident")
    expect(np.array_equal(before, after), "the logits after the rewind are others")
    return f"{DECODE_TOKENS} tokens dropped"


def _forks(tiny: TinyModel) -> str:
    ids = _prompt(tiny)
    other = [*ids[:KEPT_TOKENS], *reversed(ids[KEPT_TOKENS:PROMPT_TOKENS])]
    session = tiny.session()
    _prefilled(session, ids)
    plan = session.plan(Timeline.of(other))
    expect(plan.kept >= KEPT_TOKENS, f"only {plan.kept} of {KEPT_TOKENS} tokens were kept")
    gap = _gap(_prefilled(session, other), _prefilled(tiny.session(), other))
    tolerance = HALF_TOLERANCE if _device() == "gpu" else TOLERANCE
    expect(gap <= tolerance, f"differs by {gap:.2g} of the largest logit (at most {tolerance:g})")
    return f"{plan.kept} of {len(other)} tokens kept, differs by {gap:.1g}"


def _prompt(tiny: TinyModel) -> list[int]:
    """Plain tokens, drawn; the last DECODE_TOKENS of them are fed one at a time."""
    drawn = np.random.default_rng(5).integers(0, 256, PROMPT_TOKENS + DECODE_TOKENS)
    return [int(i) for i in drawn]


def _walked(session: "Session", ids: Sequence[int]) -> Floats:
    """Logits [1 + DECODE_TOKENS, vocab] of a prefill and of each token after it."""
    rows = [_prefilled(session, ids[:PROMPT_TOKENS])]
    rows += [session.append(token) for token in ids[PROMPT_TOKENS:]]
    return np.stack(rows)


def _prefilled(session: "Session", ids: Sequence[int]) -> Floats:
    prefill = session.sync(Timeline.of(ids))
    while not prefill.finished:
        prefill.step(session.chunk_sizes[-1] * 3)
    return prefill.logits


def _gap(ours: Floats, theirs: Floats) -> float:
    """The largest difference beside the largest logit. Wrong if a number is none."""
    largest = float(np.abs(theirs).max())
    gap = float(np.abs(ours - theirs).max()) / largest if largest > 0 else float("nan")
    if not np.isfinite(gap):
        raise Wrong("the logits are no numbers, or all zero")
    return gap
