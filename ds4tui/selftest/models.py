"""The models of this machine without their names, which are nobody's business."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ds4tui.config import Settings
from ds4tui.doctor.findings import Finding
from ds4tui.doctor.models import models
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.listing import list_models

KEPT_FACTS = frozenset(
    "chosen architecture quantisation parameters file_bytes context_tokens weights_bytes "
    "kv_bytes_per_token fits fitting_context_tokens needed_bytes available_bytes".split()
)


def models_in_short(settings: Settings) -> Iterator[Finding]:
    """How many there are, and the health of the chosen one."""
    rows = list_models(settings.data_dir).rows
    read = [row for row in rows if row.facts is not None and row.facts.is_read]
    counts = {"listed": len(rows), "read": len(read)}
    yield Finding("ok", f"{len(rows)} listed, {len(read)} of them can be read", facts=counts)
    chosen = next(iter(models(settings)), None)
    if chosen is not None:
        yield _without_names(chosen)


def _without_names(finding: Finding) -> Finding:
    facts = {name: value for name, value in finding.facts.items() if name in KEPT_FACTS}
    name, path = (str(finding.facts.get(key, "")) for key in ("name", "path"))
    if name.lower() in CATALOGUE:
        return replace(finding, facts=facts | {"name": name})
    text, advice = finding.text, finding.advice
    for private in sorted({name, path, Path(path).name, Path(path).stem} - {""}, key=len)[::-1]:
        text, advice = text.replace(private, "MODEL"), advice.replace(private, "MODEL")
    return replace(finding, text=text, advice=advice, facts=facts)
