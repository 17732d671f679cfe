"""How a model is opened: the only place outside engine/ that knows what an Assistant is made of.

The file is read and the tokenizer made on the caller's thread, so that a wrong file is told
before a thread is started; the weights are loaded on the engine thread, which owns them.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import xxhash

from ds4tui.assistant import Assistant, ModelInfo
from ds4tui.cache.causes import Cause
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.kvtally import DiskStats
from ds4tui.cache.memory import process_memory_bytes
from ds4tui.chat.rendering import ChatFormat
from ds4tui.chat.saved_replies import SavedReplies
from ds4tui.config import Settings
from ds4tui.crash import note_model
from ds4tui.engine.device_memory import available_bytes
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.session import CHUNK_STEP
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.tokenizer_cache import VocabularyCache
from ds4tui.engine.worker import Engine
from ds4tui.errors import GGUFError, StoreError
from ds4tui.library.own_sampling import own_sampling
from ds4tui.library.resolve import display_name, resolve_model
from ds4tui.library.verified import require_sound
from ds4tui.sight import Sight

if TYPE_CHECKING:
    from ds4tui.engine.models.registry import Model

log = logging.getLogger(__name__)

T = TypeVar("T")

# Reading what the process takes costs as much as a small product; panels look four times a second.
MEMORY_EVERY_S = 0.25

# Models that this process has opened, by name: a conversation that goes on with another one finds
# nothing resident, and is told why.
_opened: list[str] = []


def open_assistant(
    name_or_path: str,
    settings: Settings,
    progress: Callable[[str], None],
    is_mmproj_binding: bool = True,
) -> Assistant:
    """Blocks until the model can answer; `progress` gets words about it. An mmproj that the
    settings name has to fit if `is_mmproj_binding`; else it was named for another model.

    Raises ModelNotFound, ModelError (damaged), GGUFError, TemplateError, OutOfMemory, UsageError
    (an mmproj that is not there); nothing is left open then.
    """
    began_s = time.perf_counter()
    path = resolve_model(name_or_path, settings.data_dir)
    require_sound(path, settings.data_dir, progress)
    name = display_name(path, settings.data_dir)
    progress(f"reading {path.name}")
    with GGUFFile.open(path) as gguf:
        if gguf.architecture == "clip":
            raise GGUFError(
                f"{path.name} is an image encoder (mmproj), no model.",
                "Open the model that it was made for: it finds the file beside it by itself, or "
                "is given it with --mmproj.",
            )
        tokenizer = Tokenizer.from_gguf(gguf, VocabularyCache.of_user())
        chat_format = ChatFormat.from_gguf(gguf, tokenizer, settings.thinking_wish())
        sight = Sight.of(name, gguf, tokenizer, settings, progress, is_mmproj_binding)
        with sight:
            progress(f"loading {name} ({gguf.file_bytes / 1e6:,.0f} MB)")
            engine = Engine(lambda: _load(name, gguf, tokenizer, settings, sight, progress))
            try:
                engine.start()
                engine.wait_ready()
            except BaseException:  # an interrupt too: no thread outlives a model that did not open
                engine.close()
                raise
        replies = _saved_replies(gguf, settings)
        if replies is not None and engine.disk is not None:
            engine.disk.also_clears = replies.clear
        info = ModelInfo(
            name=name,
            path=str(path),
            architecture=gguf.architecture,
            quantisation=gguf.quantisation_label,
            parameters=gguf.parameters,
            file_bytes=gguf.file_bytes,
            context_tokens=engine.stats.context_tokens,
            sampling=own_sampling(gguf),
            vision=engine.stats.encoder,
        )
    _opened.append(name)
    note_model(name)
    log.info("opened %s in %.1f s: %s", name, time.perf_counter() - began_s, info)
    log.info("%s: sampling %s", name, settings.sampling(info.sampling).words())
    if not chat_format.prefix_stable:
        log.info("%s: %s", name, chat_format.history_words)
    log.info("%s", sight.refusal or f"{name} sees pictures with {info.vision}")
    return Assistant(
        info,
        engine,
        chat_format,
        replies,
        sight.vision,
        sight.refusal,
        images_kept=settings.images_kept,
    )


def _load(
    name: str,
    gguf: GGUFFile,
    tokenizer: Tokenizer,
    settings: Settings,
    sight: Sight,
    progress: Callable[[str], None],
) -> LoadedModel:
    """Runs on the engine thread."""
    import mlx.core as mx

    model, images = sight.load(gguf, settings, progress)
    experts = model.experts
    disk = _disk(name, gguf, model, settings)
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        chunk_sizes=chunk_sizes(settings.prefill_chunk_tokens),
        memory_use=_memory_use(),
        available_bytes=lambda: available_bytes() - (experts.unfilled_bytes if experts else 0),
        expert_stats=lambda: experts.stats if experts else None,
        give_back=mx.clear_cache,
        sessions=settings.sessions,
        emptied=Cause.MODEL_CHANGED if _opened and _opened[-1] != name else None,
        disk=disk if isinstance(disk, DiskTier) else None,
        no_disk=disk if isinstance(disk, DiskStats) else None,
        images=images,
    )


def _disk(
    name: str, gguf: GGUFFile, model: "Model", settings: Settings
) -> DiskTier | DiskStats | None:
    """None if it is off; what is wrong if there can be none: the model works without."""
    from ds4tui.engine.disk_identity import model_identity

    if settings.kv_disk == "off":
        return None
    try:
        identity = model_identity(gguf, model)
        disk = DiskTier(settings.kv_dir, settings.kv_budget_bytes, identity, label=name)
    except (StoreError, OSError) as exc:
        log.warning("KV states are not kept on disk: %s", exc)
        return DiskStats(folder=str(settings.kv_dir), why_not=str(exc))
    log.info("KV states on disk: %s", disk.stats.words)
    return disk


def _saved_replies(gguf: GGUFFile, settings: Settings) -> SavedReplies | None:
    """What was sampled, kept beside the KV states: one is of no use without the other."""
    if settings.kv_disk == "off":
        return None
    tokens = gguf.metadata.get("tokenizer.ggml.tokens", ())
    words = "\0".join(map(str, tokens))
    vocabulary = xxhash.xxh3_128_digest(words.encode("utf-8", "surrogatepass"))
    return SavedReplies(settings.replies_path, vocabulary, vocab_size=len(tokens))


def _memory_use() -> Callable[[], tuple[int, int]]:
    """On a CPU weights and rows are NumPy's or the mapped file's, of which MLX knows nothing."""
    import mlx.core as mx

    if mx.default_device().type == mx.DeviceType.gpu:
        return lambda: (mx.get_active_memory(), mx.get_peak_memory())
    return now_and_then(process_memory_bytes)


def now_and_then(
    read: Callable[[], T], clock: Callable[[], float] = time.monotonic
) -> Callable[[], T]:
    """`read`, which asks the system, at most once in MEMORY_EVERY_S: it is told at each token."""
    last: list[tuple[float, T]] = []

    def recent() -> T:
        now_s = clock()
        if not last or now_s - last[0][0] >= MEMORY_EVERY_S:
            last[:] = [(now_s, read())]
        return last[0][1]

    return recent


def chunk_sizes(largest: int) -> tuple[int, ...]:
    """The fixed set of row counts of prefill chunks, largest first: `largest`, and every multiple
    of CHUNK_STEP below it, so that a rest of a prompt is done in at most two steps."""
    below = (largest - 1) // CHUNK_STEP * CHUNK_STEP
    return (largest, *range(below, 0, -CHUNK_STEP))
