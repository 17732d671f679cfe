"""What a model's file holds, how this machine would hold it, and what that takes: as a value.

Reads headers only, unless errors are to be measured.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ds4tui.config import Settings
from ds4tui.library.eyes import Text, first_fitting, found_for
from ds4tui.library.headers import read_facts
from ds4tui.library.listing import megabytes
from ds4tui.library.resolve import display_name
from ds4tui.library.screens import limits_of

if TYPE_CHECKING:
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.engine.inventory import Inventory, PlacedTensor

LARGEST = 5  # tensors that are named


@dataclass(frozen=True, slots=True)
class TypeRow:
    """The tensors of one type that are held in one way. Bits are per weight."""

    type: str
    tensors: int
    weights: int
    file_bytes: int
    held_as: str
    way: str
    exact: bool
    memory_bytes: int

    @property
    def bits(self) -> float:
        return self.memory_bytes * 8 / self.weights


@dataclass(frozen=True, slots=True)
class TensorRow:
    name: str
    shape: tuple[int, ...]
    type: str
    file_bytes: int
    held_as: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """Errors of quantising a type anew (engine.requantise), of `weights` sampled ones."""

    type: str
    bits: int
    relative_rms: float
    largest: float
    weights: int


@dataclass(frozen=True, slots=True)
class Memory:
    """`needed_bytes`: the peak of loading. `kv_bytes`: of `kv_tokens` of context, `own_bytes` of
    all that the model was made for; None where the file does not say. `fitting_tokens`: the
    context that would be granted now."""

    weights_bytes: int
    needed_bytes: int
    available_bytes: int
    fits: bool
    kv_tokens: int | None
    kv_bytes: int | None
    own_bytes: int | None
    fitting_tokens: int | None


@dataclass(frozen=True, slots=True)
class ModelReport:
    name: str
    title: str
    path: str
    file_bytes: int
    architecture: str
    quantisation: str
    parameters: int
    context_tokens: int | None
    tokenizer: str
    vocabulary_tokens: int | None
    chat_template: bool
    vision: bool
    vision_part: str  # the file that sees for it; "": none
    vision_limits: str  # what that reads and what not, where we know; "" else
    runs_as: str  # "": it cannot be run
    sampling: str
    policy: str
    problem: str
    types: tuple[TypeRow, ...]
    largest: tuple[TensorRow, ...]
    unused: tuple[str, ...]
    memory: Memory
    measured: tuple[MeasuredRow, ...]
    notes: tuple[str, ...]


def report(gguf: "GGUFFile", settings: Settings, measure: bool = False) -> ModelReport:
    from ds4tui.engine.inventory import inventory
    from ds4tui.library.own_sampling import own_sampling

    policy = settings.weights_policy()
    held = inventory(gguf, policy, settings.context_tokens, settings.expert_cache_bytes)
    embedding = gguf.tensors.get("token_embd.weight")
    eyes = _vision_part(gguf, settings)
    kinds = [_metadata(gguf, f"tokenizer.ggml.{key}") for key in ("model", "pre")]
    return ModelReport(
        name=display_name(gguf.path, settings.data_dir),
        title=_metadata(gguf, "general.name"),
        path=str(gguf.path),
        file_bytes=gguf.file_bytes,
        architecture=gguf.architecture,
        quantisation=gguf.quantisation_label,
        parameters=gguf.parameters,
        context_tokens=held.context.own_tokens if held.context else None,
        tokenizer=", ".join(kind for kind in kinds if kind),
        vocabulary_tokens=embedding.shape[0] if embedding else None,
        chat_template="tokenizer.chat_template" in gguf.metadata,
        vision=bool(eyes),
        vision_part=eyes,
        vision_limits=limits_of(eyes),
        runs_as="" if held.problem else held.words,
        sampling=settings.sampling(own_sampling(gguf)).words(),
        policy=policy.identity,
        problem=held.problem,
        types=_type_rows(held.tensors),
        largest=_largest(held.tensors),
        unused=tuple(plain(t.info.name) for t in held.unused),
        memory=_memory(held),
        measured=_measured(gguf) if measure else (),
        notes=tuple(_notes(gguf, settings, held)),
    )


def _vision_part(gguf: "GGUFFile", settings: Settings) -> str:
    facts = read_facts(gguf.path)
    if not facts.is_read:
        return ""
    paths = found_for(gguf.path, settings.models_dir)
    fitting = first_fitting(paths, Text(facts.architecture, facts.width))
    return str(fitting) if fitting is not None else ""


def _metadata(gguf: "GGUFFile", key: str) -> str:
    value = gguf.metadata.get(key)
    return plain(value) if isinstance(value, str) else ""


def plain(text: str) -> str:
    """A text of a file as one short line without control characters."""
    from ds4tui.engine.gguf_cursor import shown

    return text if text.isprintable() and len(text) <= 80 else shown(text)[1:-1]


def _type_rows(tensors: "Sequence[PlacedTensor]") -> tuple[TypeRow, ...]:
    """By bytes in the file, the largest type first."""
    groups: dict[tuple[str, str, str, bool], list[PlacedTensor]] = defaultdict(list)
    for tensor in tensors:
        form, way, exact = "", "unused", True
        if tensor.holding is not None:
            form, way, exact = tensor.holding.form, tensor.holding.way, tensor.holding.exact
        groups[tensor.info.ggml_type.name, form, way, exact].append(tensor)
    rows = [
        TypeRow(
            type=kind,
            tensors=len(group),
            weights=sum(t.elements for t in group),
            file_bytes=sum(t.info.nbytes for t in group),
            held_as=form,
            way=way,
            exact=exact,
            memory_bytes=sum(t.holding.nbytes for t in group if t.holding),
        )
        for (kind, form, way, exact), group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.file_bytes))


def _largest(tensors: "Sequence[PlacedTensor]") -> tuple[TensorRow, ...]:
    largest = sorted(tensors, key=lambda t: -t.info.nbytes)[:LARGEST]
    return tuple(
        TensorRow(
            name=plain(t.info.name),
            shape=t.info.shape,
            type=t.info.ggml_type.name,
            file_bytes=t.info.nbytes,
            held_as=t.holding.form if t.holding else "not used",
            memory_bytes=t.holding.nbytes if t.holding else 0,
        )
        for t in largest
    )


def _memory(held: "Inventory") -> Memory:
    from ds4tui.engine.inventory import KV_TOKENS

    context = held.context
    return Memory(
        weights_bytes=held.weights_bytes,
        needed_bytes=held.required_bytes,
        available_bytes=held.available_bytes,
        fits=held.fits,
        kv_tokens=min(KV_TOKENS, context.own_tokens) if context else None,
        kv_bytes=context.kv_bytes if context else None,
        own_bytes=context.own_bytes if context else None,
        fitting_tokens=context.fitting_tokens if context else None,
    )


def _measured(gguf: "GGUFFile") -> tuple[MeasuredRow, ...]:
    from ds4tui.engine.requantise import sampled_errors

    return tuple(
        MeasuredRow(kind, error.bits, error.relative_rms, error.largest, weights)
        for kind, error, weights in sampled_errors(gguf)
    )


def _notes(gguf: "GGUFFile", settings: Settings, held: "Inventory") -> Iterator[str]:
    """What asking for something else would change."""
    from ds4tui.engine.inventory import inventory

    policy = settings.weights_policy()
    if policy.requantise != "off" and not held.requantise_works:
        yield f"requantise={policy.requantise} does nothing on this machine: {held.words}."
    if not held.requantise_works:
        return

    def megabytes_with(**changes: Any) -> str:
        return megabytes(inventory(gguf, replace(policy, **changes)).weights_bytes)

    now = f"Weights take {megabytes(held.weights_bytes)}"
    if plain := _names(t for t in held.tensors if _is_blown_up(t)):
        yield (
            f"{plain}: MLX has no exact form. {now}; --requantise 8 would make that "
            f"{megabytes_with(requantise='8')}, --requantise 4 {megabytes_with(requantise='4')}, "
            "neither exactly; --measure tells the errors."
        )
    if wide := _names(t for t in held.tensors if t.holding and t.holding.wide_scales):
        yield (
            f"{wide}: exact scales need float32, and products are made in it. {now}; "
            f"--quant-scales float16 would make that {megabytes_with(scales='float16')} and "
            "products faster, with scales rounded to 11 bits."
        )
    if any(t.holding and t.holding.way == "re-quantised" for t in held.tensors):
        yield "Quantised anew while loading; the errors are then logged. --measure tells them."


def _is_blown_up(tensor: "PlacedTensor") -> bool:
    """Whether plain values of 16 bits are held of a type that has fewer."""
    from ds4tui.engine.holding import PLAIN

    holding = tensor.holding
    return (
        holding is not None
        and holding.way in ("values", "rounded values")
        and tensor.info.ggml_type not in PLAIN
    )


def _names(tensors: "Iterable[PlacedTensor]") -> str:
    """The types of `tensors`, "Q3_K, Q6_K"."""
    return ", ".join(sorted({t.info.ggml_type.name for t in tensors}))
