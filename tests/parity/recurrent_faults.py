"""Planted faults of recurrent states: what others' sessions did with them, in ours.

Each is patched into both kinds of layers, or into what is asked of them.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ds4tui.engine.state import HostRecurrentLayer, LayerBounded, RecurrentLayer

KINDS = (RecurrentLayer, HostRecurrentLayer)
Plant = Callable[[pytest.MonkeyPatch], None]


def reset_on_trim(patch: pytest.MonkeyPatch) -> None:
    """A rewind is granted, and what is left is nothing."""

    def rewind(layer: Any, to: int) -> None:
        if to != layer.length:
            layer._kept, layer.length = None, to

    _grant(patch, rewind)


def untouched_on_trim(patch: pytest.MonkeyPatch) -> None:
    """A rewind is granted, and the state stays what it was further on."""

    def rewind(layer: Any, to: int) -> None:
        layer.length = to

    _grant(patch, rewind)


def fed_twice(patch: pytest.MonkeyPatch) -> None:
    """An exact hit feeds the last token again to a state that has it."""
    for kind in KINDS:
        can = kind.can_rewind
        patch.setattr(
            kind, "can_rewind", lambda layer, to, can=can: to == layer.length - 1 or can(layer, to)
        )
        rewind = kind.rewind

        def once_more(layer: Any, to: int, rewind: Any = rewind) -> None:
            if to == layer.length - 1:
                layer.length = to
            else:
                rewind(layer, to)

        patch.setattr(kind, "rewind", once_more)


def stale_tail(patch: pytest.MonkeyPatch) -> None:
    """What is put back has the convolution's rows of where it came from."""
    for kind in KINDS:
        restore = kind.restore

        def keeping(layer: Any, bounded: LayerBounded, length: int, restore: Any = restore) -> None:
            tail = layer.held()[1]
            restore(layer, bounded, length)
            layer._kept = layer._kept[0], tail

        patch.setattr(kind, "restore", keeping)


def one_token_late(patch: pytest.MonkeyPatch) -> None:
    """A snapshot shows what the state became with the next token."""
    for kind in KINDS:
        bounded, replace = kind.bounded, kind.replace

        def taken(layer: Any, bounded: Any = bounded) -> LayerBounded:
            layer.pending = bounded(layer)
            return layer.pending  # type: ignore[no-any-return]

        def replaced(layer: Any, *arrays: Any, replace: Any = replace) -> None:
            replace(layer, *arrays)
            pending, layer.pending = getattr(layer, "pending", None), None
            if pending is not None:
                late = tuple(1 * array for array in layer.held())
                object.__setattr__(pending, "arrays", late)

        patch.setattr(kind, "bounded", taken)
        patch.setattr(kind, "replace", replaced)


def aliased_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is the live arrays themselves, which the CPU kernels write to."""
    patch.setattr(HostRecurrentLayer, "bounded", lambda layer: LayerBounded(layer.held()))


def aliased_restore(patch: pytest.MonkeyPatch) -> None:
    """What is put back is the snapshot's own arrays: the second use finds them changed."""
    patch.setattr(HostRecurrentLayer, "_taken", lambda layer, arrays: arrays)


def _grant(patch: pytest.MonkeyPatch, rewind: Callable[[Any, int], None]) -> None:
    for kind in KINDS:
        patch.setattr(kind, "can_rewind", lambda layer, to: 0 <= to <= layer.length)
        patch.setattr(kind, "rewind", rewind)


FAULTS: dict[str, Plant] = {
    "a state reset to zero on trim": reset_on_trim,
    "a state that trim leaves as it was": untouched_on_trim,
    "the last token fed twice on an exact hit": fed_twice,
    "a stale tail of the convolution": stale_tail,
    "a snapshot one token late": one_token_late,
}
HOST_FAULTS: dict[str, Plant] = {
    "a snapshot that aliases the live arrays": aliased_snapshot,
    "a state that aliases its snapshot": aliased_restore,
}
