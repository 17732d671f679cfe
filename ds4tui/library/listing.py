"""What `ds4tui models` shows: known models, and every model that programs keep on this machine."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ds4tui.cache.memory import MemoryPlan, available_memory_bytes
from ds4tui.errors import ModelError
from ds4tui.library import places, screens
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.discover import Found, survey
from ds4tui.library.eyes import Text, first_fitting, found_for
from ds4tui.library.facts_cache import FactsCache
from ds4tui.library.fitting import Fit, fit_of
from ds4tui.library.headers import Facts
from ds4tui.library.resolve import catalogued_path, models_dir
from ds4tui.library.verified import has_changed


@dataclass(frozen=True, slots=True)
class LocalModel:
    """`file_bytes` is what is on disk, 0 if nothing is; `state` is in words."""

    name: str
    path: Path
    file_bytes: int
    state: str
    about: str = ""


def known_model(name: str, data_dir: Path) -> LocalModel:
    model = CATALOGUE[name]
    path = catalogued_path(model, data_dir)
    size = path.stat().st_size if os.path.isfile(path) else 0
    state = f"not here: ds4tui pull {name}"
    if size:
        state = "ready" if size == model.file_bytes else f"damaged: ds4tui pull {name}"
        if state == "ready" and has_changed(path, model):
            state = f"damaged or changed: not verified (ds4tui pull {name})"
    return LocalModel(name, path, size, state, f"{model.title}, {model.licence}")


@dataclass(frozen=True, slots=True)
class Row:
    """One model of the list: what its header says, or why it cannot be used (`problem`)."""

    name: str
    source: str
    path: Path
    facts: Facts | None = None
    fit: Fit | None = None
    vision_part: Path | None = None
    problem: str = ""

    @property
    def plan(self) -> MemoryPlan | None:
        return self.fit.plan if self.fit is not None else None

    @property
    def vision_limits(self) -> str:
        """What its image encoder reads and what not, where we know; "" else."""
        return screens.limits_of(self.vision_part) if self.vision_part else ""


@dataclass(frozen=True, slots=True)
class Listing:
    """`problems` are sentences about places that could not be searched."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...]
    own_folder: Path
    available_bytes: int


def list_models(data_dir: Path, available_bytes: int | None = None) -> Listing:
    """Reads headers only. Never raises for what is on the disk: what cannot be read is a row."""
    available = available_memory_bytes() if available_bytes is None else available_bytes
    found = survey(models_dir(data_dir))
    by_path = {catalogued_path(model, data_dir): name for name, model in CATALOGUE.items()}
    cache, rows = FactsCache(), []
    for name in CATALOGUE:
        known = known_model(name, data_dir)
        if known.state != "ready":
            rows.append(Row(name, "known", known.path, problem=known.state))
    for model in found.models:
        name = by_path.get(model.path, model.name)
        if not any(row.path == model.path for row in rows):  # damaged: said above
            rows.append(_seeing(_row(model, name, available, cache), data_dir))
    cache.save()
    own = models_dir(data_dir)
    return Listing(tuple(rows), tuple(found.problems), own, available)


def _row(model: Found, name: str, available_bytes: int, cache: FactsCache) -> Row:
    row = (name, model.source, model.path)
    if model.problem:
        return Row(*row, problem=model.problem)
    try:
        facts = cache.facts(model.path)
    except ModelError as exc:
        return Row(*row, problem=exc.message)
    except OSError as exc:  # gone or torn away meanwhile
        return Row(*row, problem=f"It cannot be read: {exc.strerror or exc}.")
    fit = fit_of(facts, available_bytes) if facts.is_read else None
    return Row(*row, facts, fit, model.vision_part)


def _seeing(row: Row, data_dir: Path) -> Row:
    """With the image encoder that opening it would find: names say it in folders of one model,
    headers in those of many."""
    facts = row.facts
    if row.vision_part is not None or facts is None or not facts.is_read:
        return row
    text = Text(facts.architecture, facts.width)
    return replace(row, vision_part=first_fitting(found_for(row.path, models_dir(data_dir)), text))


# -- as text -----------------------------------------------------------------------------------

PATH_MIN = 24  # characters of the last column that are shown even if lines then wrap

HEAD = ("NAME", "ARCHITECTURE", "QUANT", "SIZE", "CONTEXT", "FITS", "VISION", "WHERE")


def listing_text(listing: Listing, width: int | None = None) -> str:
    """The table, then what cannot be used with its reason, then where was not looked. Lines of
    the table are cut to `width` in the middle of the path, which ends them."""
    usable = [row for row in listing.rows if row.facts is not None]
    lines = _table([HEAD, *map(_cells, usable)], width) if usable else []
    for row in listing.rows:
        if row.facts is None:
            lines.append(_harmless(f"{row.name} ({row.source}): {row.problem}"))
    lines += ["", *listing.problems] if listing.problems else [""]
    lines.append(
        f"{gigabytes(listing.available_bytes)} of memory are available. FITS is told for the "
        "longest context; open one with -m NAME."
    )
    for row in usable:
        if row.vision_limits:
            lines.append(f"{_harmless(row.name)} {row.vision_limits}.")
    lines.append(f"Own models are kept in {listing.own_folder}; more: ds4tui models --catalogue")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    facts = row.facts
    assert facts is not None
    return (
        row.name,
        facts.architecture,
        facts.quantisation,
        gigabytes(facts.file_bytes),
        f"{facts.context_tokens:,}" if facts.context_tokens else "?",
        fits_words(row),
        ("screens" if row.vision_limits else "yes") if row.vision_part else "no",
        f"{row.source}: {_shortened(row.path)}",
    )


def _shortened(path: Path) -> str:
    home = places.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def fits_words(row: Row) -> str:
    """Whether it fits, with both numbers: what is needed and what is there."""
    plan = row.plan
    if plan is None:
        facts = row.facts
        return "not read yet" if facts is not None and not facts.is_read else "?"
    if row.fit is not None and row.fit.is_in_part:
        least = f"{gigabytes(plan.weights_bytes)} of {gigabytes(plan.available_bytes)}"
        return f"experts in part, least: {least}"
    numbers = f"{gigabytes(plan.needed_bytes)} of {gigabytes(plan.available_bytes)}"
    if plan.fits_whole:
        return f"yes, {numbers}"
    if plan.fits:
        return f"{plan.context_tokens:,} tokens, all: {numbers}"
    least = f"{gigabytes(plan.weights_bytes)} of {gigabytes(plan.available_bytes)}"
    return f"no, weights: {least}"


def _table(rows: Iterable[tuple[str, ...]], width: int | None) -> list[str]:
    cells = [tuple(_harmless(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        room = max(PATH_MIN, width - sum(widths[:-1]) - 2 * (len(widths) - 1))
        cells = [(*row[:-1], _cut(row[-1], room)) for row in cells]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _cut(text: str, room: int) -> str:
    """Both ends of `text` say something: what holds it, and the file's name."""
    if len(text) <= room:
        return text
    return f"{text[: room // 3]}…{text[len(text) - (room - room // 3 - 1) :]}"


def _harmless(text: str) -> str:
    """Names come out of files and folders: nothing of them may steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def gigabytes(count: float) -> str:
    """Bytes as people read them; 1 GB is 10**9 bytes, as download sizes are given."""
    return f"{count / 1e9:,.2f} GB" if count < 1e11 else f"{count / 1e9:,.0f} GB"


def megabytes(count: float) -> str:
    """Bytes as people read them; 1 MB is 1,000,000 bytes, as download sizes are given."""
    return f"{count / 1e6:,.1f} MB"


# -- as JSON -----------------------------------------------------------------------------------


def listing_json(listing: Listing) -> str:
    """One object: models, problems, available_bytes. Sizes are bytes; null where unknown."""
    models = [_plain(row) for row in listing.rows]
    whole = {
        "models": models,
        "problems": list(listing.problems),
        "available_bytes": listing.available_bytes,
        "own_folder": str(listing.own_folder),
    }
    return json.dumps(whole, indent=2)


def _plain(row: Row) -> dict[str, Any]:
    facts, plan = row.facts, row.plan
    about: dict[str, Any] = {"name": row.name, "held_by": row.source, "path": str(row.path)}
    about["problem"] = row.problem or None
    about |= asdict(facts) if facts else dict.fromkeys(Facts.__dataclass_fields__)
    about["architecture_is_read"] = facts.is_read if facts else None
    about["fits"] = plan.fits if plan else None
    about["fits_whole_context"] = plan.fits_whole if plan else None
    about["experts_in_part"] = row.fit.is_in_part if row.fit else None
    about["fitting_context_tokens"] = plan.context_tokens if plan else None
    about["needed_bytes"] = plan.needed_bytes if plan else None
    about["vision_part"] = str(row.vision_part) if row.vision_part else None
    about["vision_limits"] = row.vision_limits or None
    return about
