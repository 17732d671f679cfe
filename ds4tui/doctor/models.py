"""The health of each model on this machine, and what of it fits the memory."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ds4tui.config import Settings
from ds4tui.doctor.findings import Finding, Level
from ds4tui.errors import Ds4Error, ModelError, ModelNotFound
from ds4tui.library import screens
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.fitting import Fit, fit_of
from ds4tui.library.headers import ARCHITECTURES, Facts, read_facts
from ds4tui.library.listing import Listing, Row, gigabytes, list_models, megabytes
from ds4tui.library.resolve import catalogued_path, display_name, resolve_model
from ds4tui.library.verified import require_sound


def models(settings: Settings) -> Iterator[Finding]:
    """The chosen model (the setting `model`) first."""
    listing = list_models(settings.data_dir)
    chosen = yield from _chosen(settings, listing)
    for row in listing.rows:
        if row.path != chosen:
            yield _health(row, settings, listing.available_bytes, is_chosen=False)
    for problem in listing.problems:
        yield Finding("note", problem)


def _chosen(settings: Settings, listing: Listing) -> Generator[Finding, None, Path | None]:
    """What is told of it, and, returned, its path (None if there is none)."""
    try:
        path = resolve_model(settings.model, settings.data_dir)
    except ModelNotFound as exc:
        known = CATALOGUE.get(settings.model.lower())
        missing = known is not None and not catalogued_path(known, settings.data_dir).exists()
        facts = {"name": settings.model, "chosen": True, "problem": exc.message}
        yield Finding("note" if missing else "BAD", exc.message, exc.hint, facts)
        return catalogued_path(known, settings.data_dir) if known else None
    row = next((row for row in listing.rows if row.path == path), None) or _row(path, settings)
    yield _health(row, settings, listing.available_bytes, is_chosen=True)
    return path


def _row(path: Path, settings: Settings) -> Row:
    """Of a file that is in no folder of models."""
    row = Row(display_name(path, settings.data_dir), "file", path)
    try:
        return replace(row, facts=read_facts(path))
    except (ModelError, OSError) as exc:
        return replace(row, problem=str(exc))


def _health(row: Row, settings: Settings, available_bytes: int, is_chosen: bool) -> Finding:
    name = f"{row.name} ({row.source})" + (", chosen" if is_chosen else "")
    about: dict[str, Any] = {"name": row.name, "held_by": row.source, "path": str(row.path)}
    about["chosen"] = is_chosen
    if row.facts is None:
        return _unreadable(name, row, is_chosen, about)
    about |= _facts(row.facts)
    bad: Level = "BAD" if is_chosen else "warn"
    if not row.facts.is_read:
        return Finding(
            "BAD" if is_chosen else "note",
            f"{name}: the architecture {row.facts.architecture!r} is not read",
            f"Read are: {', '.join(sorted(ARCHITECTURES))}.",
            about | {"problem": "architecture"},
        )
    try:
        doubts, sees = _opened(row.path, settings, is_chosen)
    except (Ds4Error, OSError) as exc:
        text, hint = (exc.message, exc.hint) if isinstance(exc, Ds4Error) else (str(exc), "")
        return Finding(bad, f"{name}: {text}", hint, about | {"problem": text})
    fit = fit_of(row.facts, available_bytes, settings.context_tokens)
    about |= _planned(fit)
    if not sees and row.vision_part is not None and not is_chosen:
        sees = row.vision_part.name
    about["image_encoder"] = sees or None
    text = f"{name}: {_header_words(row.facts)}; {_plan_words(fit, row.facts)}"
    text += f"; sees pictures with {sees}" if sees else ""
    text += f", which {screens.limits_of(screens.MMPROJ)}" if sees == screens.MMPROJ.name else ""
    if fit is not None and not fit.plan.fits:
        return Finding(
            "BAD" if is_chosen else "note",
            text,
            "Close other programs, or choose a smaller one: ds4tui models --catalogue",
            about,
        )
    return Finding("note" if doubts else "ok", text + doubts, facts=about)


def _unreadable(name: str, row: Row, is_chosen: bool, about: dict[str, Any]) -> Finding:
    """A model that cannot be there, is not there yet, or is broken."""
    expected = row.path.is_dir() or not row.path.exists()  # another format, or not fetched
    level: Level = "BAD" if is_chosen else "note" if expected else "warn"
    known = row.name in CATALOGUE or expected
    advice = "" if known else "Remove it, or get it anew from where it came."
    return Finding(level, f"{name}: {row.problem}", advice, about | {"problem": row.problem})


def _opened(path: Path, settings: Settings, is_chosen: bool) -> tuple[str, str]:
    """Doubts about the file in words, "" for none, and the file of its image encoder. Raises
    ModelError if it cannot be run.

    What reads a whole vocabulary is tried on the chosen model only.
    """
    from ds4tui.chat.rendering import ChatFormat
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.engine.inventory import inventory
    from ds4tui.engine.tokenizer import Tokenizer
    from ds4tui.engine.tokenizer_cache import VocabularyCache
    from ds4tui.sight import Sight

    require_sound(path, settings.data_dir, lambda words: None)
    with GGUFFile.open(path) as gguf:
        if problem := inventory(gguf, settings.weights_policy()).problem:
            raise ModelError(problem)
        if not is_chosen:
            return "", ""
        tokenizer = Tokenizer.from_gguf(gguf, VocabularyCache.of_user())
        template = ChatFormat.from_gguf(gguf, tokenizer, settings.thinking_wish())
        with Sight.of(gguf.path.stem, gguf, tokenizer, settings, lambda words: None) as sight:
            sees = sight.vision.name if sight.vision is not None else ""
    doubts = "" if template.prefix_stable else f"; its chat template: {template.history_words}"
    return doubts, sees


def _header_words(facts: Facts) -> str:
    return (
        f"{facts.architecture}, {facts.quantisation}, {facts.parameters / 1e6:,.0f} M parameters, "
        f"{megabytes(facts.file_bytes)}"
    )


def _plan_words(fit: Fit | None, facts: Facts) -> str:
    if fit is None:
        return "the file does not say its context"
    plan = fit.plan
    if fit.is_in_part:
        return (
            f"fits with experts read from the file as they are picked, and at most "
            f"{plan.context_tokens:,} of {plan.wanted_tokens:,} tokens: weights "
            f"{megabytes(facts.resident_bytes)}, at least {megabytes(facts.paged_bytes)} of them "
            f"held, {gigabytes(plan.available_bytes)} available"
        )
    weights = megabytes(facts.resident_bytes)
    if plan.weights_bytes > facts.resident_bytes:
        weights += f" ({megabytes(plan.weights_bytes)} while they are loaded)"
    costs = (
        f"weights {weights} and {facts.kv_bytes_per_token / 1e3:,.1f} kB a "
        f"token, {gigabytes(plan.available_bytes)} available"
    )
    if plan.fits_whole:
        return f"fits with its context of {plan.context_tokens:,} tokens: {costs}"
    if plan.fits:
        return f"fits with {plan.context_tokens:,} of {plan.wanted_tokens:,} tokens: {costs}"
    return f"does not fit: {costs}"


def _facts(facts: Facts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in Facts.__dataclass_fields__}


def _planned(fit: Fit | None) -> dict[str, Any]:
    if fit is None:
        return {"fits": None, "fitting_context_tokens": None, "needed_bytes": None}
    plan = fit.plan
    return {
        "fits": plan.fits,
        "experts_in_part": fit.is_in_part,
        "fitting_context_tokens": plan.context_tokens,
        "needed_bytes": plan.needed_bytes,
        "available_bytes": plan.available_bytes,
    }
