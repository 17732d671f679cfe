"""How a model that is opened gets its eyes: the mmproj that was named, one beside it, or, for the
catalogue's smollm2, the one that comes with the package (library/screens.py).

A named one that does not fit the model that it was named for is an error; one that was found by
itself costs nothing but pictures, and why is told to whoever sends one. Read on the caller's
thread, loaded on the engine's.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ds4tui.config import Settings
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import GGUFError, OutOfMemory, UsageError
from ds4tui.library import screens
from ds4tui.library.eyes import Text, found_for, require_fitting

if TYPE_CHECKING:
    from ds4tui.engine.models.registry import Model
    from ds4tui.engine.vision.config import VisionConfig
    from ds4tui.engine.vision.held import HeldImages
    from ds4tui.engine.vision.seeing import Eyes, Vision

log = logging.getLogger(__name__)

_NO_ENCODER = "no image encoder (mmproj file) lies beside it."
_HINT = (
    "Put the mmproj file that was made for it there or name it with --mmproj FILE, or load a model "
    "that sees: ds4tui models --catalogue lists some."
)
_SWITCHED_OFF = "its image encoder is switched off (mmproj = none)."


class Sight:
    """What is known of the image encoder of a model that is being opened; as a context it keeps
    the encoder's file open. `refusal` says why the model sees no pictures and what to do; "" if
    it sees."""

    def __init__(self, name: str, eyes: "Eyes | None", refusal: str, is_named: bool) -> None:
        self._name, self._eyes, self._is_named = name, eyes, is_named
        self.refusal = refusal

    @classmethod
    def of(
        cls,
        name: str,
        gguf: GGUFFile,
        tokenizer: Tokenizer,
        settings: Settings,
        progress: Callable[[str], None],
        is_binding: bool = True,
    ) -> "Sight":
        """Of the text model `gguf`, called `name`. Raises UsageError and GGUFError for an mmproj
        that was named and is not there or does not fit. Not `is_binding`: it was named for another
        model, and is what is tried last."""
        if settings.mmproj.lower() == "none":
            return cls(name, None, _words(name, _SWITCHED_OFF, "Open it without that."), False)
        named = _named(settings, is_binding)
        binding = named if is_binding else None
        paths = [binding] if binding else found_for(gguf.path, settings.models_dir)
        if named and named not in paths:
            paths.append(named)
        text = _text(gguf)
        if not paths:
            return cls(name, None, _words(name, _none_found(gguf, text), _HINT), False)
        from ds4tui.engine.vision.seeing import eyes_of, open_eyes  # brings Pillow

        progress(f"reading {paths[0].name}")
        encode = partial(tokenizer.encode, special=True)

        def fits(file_name: str, config: "VisionConfig") -> None:
            require_fitting(file_name, config, text)

        if binding:
            return cls(name, eyes_of(binding, encode, fits), "", True)
        eyes, reasons = open_eyes(paths, encode, fits)
        return cls(name, eyes, "" if eyes else _words(name, reasons, _HINT), False)

    @property
    def vision(self) -> "Vision | None":
        return self._eyes.vision if self._eyes is not None else None

    def load(
        self, gguf: GGUFFile, settings: Settings, tell: Callable[[str], None] = lambda _: None
    ) -> "tuple[Model, HeldImages | None]":
        """The text model, and what sees for it, with memory for both. Runs on the engine thread.
        `tell` as registry.load_model's.
        Raises as registry.load_model, and GGUFError for a named encoder that lacks something."""
        from ds4tui.engine.device_memory import available_bytes
        from ds4tui.engine.holding import required_bytes
        from ds4tui.engine.models.registry import load_model, path_for

        policy = settings.weights_policy()
        if self._eyes is None:
            return load_model(gguf, settings, policy=policy, tell=tell), None
        needed_bytes = required_bytes(self._eyes.file, path_for(policy, hybrids=False))
        try:
            left = lambda: available_bytes() - needed_bytes  # noqa: E731
            model = load_model(gguf, settings, left, policy, tell)
        except OutOfMemory as exc:
            if self._is_named:
                raise
            reason = f"beside it there is no memory for its image encoder ({exc.message})"
            self._give_up(reason, "Close other programs, or use a smaller context.")
            return load_model(gguf, settings, policy=policy, tell=tell), None
        return model, self._held(settings)

    def _held(self, settings: Settings) -> "HeldImages | None":
        from ds4tui.engine.models.registry import path_for
        from ds4tui.engine.vision.held import HeldImages
        from ds4tui.engine.vision.projectors import Encoder

        assert self._eyes is not None
        file = self._eyes.file
        try:
            encoder = Encoder(file, path_for(settings.weights_policy(), hybrids=False))
        except GGUFError as exc:
            if self._is_named:
                raise
            self._give_up(exc.message, _HINT)
            return None
        return HeldImages(encoder, name=file.path.name, weights_bytes=encoder.weights_bytes)

    def _give_up(self, reason: str, hint: str) -> None:
        self.close()
        self._eyes, self.refusal = None, _words(self._name, reason, hint)

    def close(self) -> None:
        """Weights that lie where the file is mapped keep their map."""
        if self._eyes is not None:
            self._eyes.file.close()

    def __enter__(self) -> "Sight":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def require_named(gguf: GGUFFile, settings: Settings) -> None:
    """By headers alone, before anything is closed for the model `gguf`. Raises UsageError and
    GGUFError for an mmproj that was named for it and is not there or does not fit."""
    from ds4tui.engine.vision.config import VisionConfig

    named = None if settings.mmproj.lower() == "none" else _named(settings)
    if named is not None:
        with GGUFFile.open(named) as file:
            require_fitting(named.name, VisionConfig.of(file), _text(gguf))


def _text(gguf: GGUFFile) -> Text:
    return Text(gguf.architecture, gguf.key(".embedding_length", int, 0))


def _named(settings: Settings, is_needed: bool = True) -> Path | None:
    """As a path, as a file of the models folder, or as the one that comes with the package; None
    if none was named. Raises UsageError if it is not there and needed."""
    if not settings.mmproj:
        return None
    try:
        path = Path(settings.mmproj).expanduser()
    except RuntimeError:  # ~somebody who is not there
        path = Path(settings.mmproj)
    inside = settings.models_dir / settings.mmproj
    brought = screens.FOLDER / settings.mmproj
    found = next((p for p in (path, inside, brought) if p.is_file()), None)
    if found is None and is_needed:
        raise UsageError(
            f"There is no mmproj file {path}, nor one of that name in {settings.models_dir}.",
            "Correct --mmproj (or the setting mmproj); without it the model finds the file beside "
            "it by itself, and --mmproj none opens it without pictures.",
        )
    return found


def _none_found(gguf: GGUFFile, text: Text) -> str:
    words = gguf.key("tokenizer.ggml.tokens", list, [])
    return f"{_NO_ENCODER} {screens.why_not(text.architecture, text.width, words)}".rstrip()


def _words(name: str, reason: str, hint: str) -> str:
    return f"{name} sees no pictures: {reason} {hint}"
