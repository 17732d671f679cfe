"""What can be fetched inside the app, and what is asked about before it is: as values."""

from collections.abc import Iterable
from dataclasses import dataclass

from ds4tui.library.catalogue import CATALOGUE, CatalogueModel
from ds4tui.library.listing import Row
from ds4tui.library.recommended import AS_OF, TEXT, VISION, Recommended


@dataclass(frozen=True, slots=True)
class Offer:
    """One model that a pull brings. `name` is what `pull` is told. Sizes are bytes, with the image
    encoder's; `is_rounded`: as their publisher gave them. `memory_gb` is of the machine, 0 if any
    will do."""

    name: str
    title: str
    licence: str
    download_bytes: int
    disk_bytes: int
    origin: str
    sees: bool = False
    is_rounded: bool = False
    memory_gb: int = 0


def of_known(model: CatalogueModel) -> Offer:
    source = model.source
    return Offer(
        name=model.name,
        title=model.title,
        licence=model.licence,
        download_bytes=source.wheel_bytes,
        disk_bytes=model.file_bytes,
        origin=f"PyPI, package {source.project} {source.version}",
    )


def of_recommended(model: Recommended) -> Offer:
    whole = model.file_bytes + model.vision_bytes
    return Offer(
        name=model.pull_name,
        title=model.title,
        licence=model.licence,
        download_bytes=whole,
        disk_bytes=whole,
        origin=f"the Hugging Face hub, {model.repo} (as of {AS_OF})",
        sees=bool(model.vision_file),
        is_rounded=model.is_rounded,
        memory_gb=model.memory_gb,
    )


def offers(rows: Iterable[Row]) -> list[Offer]:
    """What is not among the models that can be opened, `rows`; our own first, then by size."""
    usable = [row for row in rows if row.facts is not None]
    names = {row.name for row in usable}
    files = {row.path.name for row in usable}
    known = [of_known(model) for model in CATALOGUE.values() if model.name not in names]
    others = [of_recommended(m) for m in (*TEXT, *VISION) if m.file not in files]
    return known + sorted(others, key=lambda offer: offer.download_bytes)
