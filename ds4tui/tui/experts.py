"""The section of the side panel about experts that are copied on demand. Pure."""

from textual.content import Content

from ds4tui.engine.stats import EngineStats
from ds4tui.tui.words import bar, percent, row, section, size_words


def experts_section(stats: EngineStats, width: int) -> Content | None:
    """What is held of the experts and how often it served; None if all are held."""
    experts = stats.experts
    if experts is None:
        return None
    picked = experts.hits + experts.misses
    rate = (
        f"{experts.read_bytes / experts.read_ms * 1e3 / 1e6:,.0f} MB/s" if experts.read_ms else "-"
    )
    return section(
        "Experts",
        row("held", f"{size_words(experts.resident_bytes)} of {size_words(experts.budget_bytes)}"),
        bar(experts.resident_bytes / experts.budget_bytes if experts.budget_bytes else 0.0, width),
        row("found held", f"{percent(experts.hits, picked)}% of {picked:,}" if picked else "-"),
        row("copied", f"{size_words(experts.read_bytes)} at {rate}"),
        row("let go", f"{experts.evicted:,}"),
    )
