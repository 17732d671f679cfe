"""The models to choose from: those on this machine with what opening them takes, then those that
can be fetched. Dismissed with a Row, an Offer, or None."""

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ds4tui.assistant import ModelInfo
from ds4tui.library.listing import Row, fits_words, gigabytes
from ds4tui.library.offers import Offer
from ds4tui.tui.screens.narrowed import NarrowedScreen
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import QUIET

KEYS = "Enter opens or offers to fetch, Esc closes"


class ModelsScreen(NarrowedScreen[Row | Offer | None]):
    def __init__(self, choices: Sequence[Row | Offer], info: ModelInfo | None, tokens: int) -> None:
        """`info` is of the open model; `tokens` is how long the conversation on the screen is."""
        title = cost_words(tokens) if tokens else f"{info.name} is open" if info else "Models"
        super().__init__(Content(one_line(title)), KEYS, "Type to find names")
        self._choices = choices
        self._open_path = info.path if info else ""

    def chosen(self, number: int) -> Row | Offer:
        return self._choices[number]

    def list_options(self, options: OptionList, wanted: str) -> None:
        for number, choice in enumerate(self._choices):
            content = model_content(choice, is_open=_path_of(choice) == self._open_path != "")
            if wanted.lower() in content.plain.lower():
                usable = isinstance(choice, Offer) or choice.facts is not None
                options.add_option(Option(content, id=str(number), disabled=not usable))
        options.highlighted = 0 if options.option_count else None
        if options.option_count and options.get_option_at_index(0).disabled:
            options.action_cursor_down()


def cost_words(tokens: int) -> str:
    """Of a conversation that goes on with another model."""
    return f"Another model reads this conversation anew: some {tokens:,} tokens"


def _path_of(choice: Row | Offer) -> str:
    return str(choice.path) if isinstance(choice, Row) else ""


def model_content(choice: Row | Offer, *, is_open: bool = False) -> Content:
    """Two lines: what it is, and what it takes."""
    if isinstance(choice, Offer):
        return _offer(choice)
    facts = choice.facts
    if facts is None:
        return _lines(choice.name, "", f"{choice.source}: {choice.problem}")
    context = f"{facts.context_tokens:,}" if facts.context_tokens else "unknown"
    sight = f"sees {'screens' if choice.vision_limits else 'pictures'}"
    about = (
        facts.quantisation,
        gigabytes(facts.file_bytes),
        f"context {context}",
        sight if choice.vision_part else "text only",
    )
    takes = f"fits: {fits_words(choice)}" if facts.is_read else "its architecture is not read"
    return _lines(choice.name, " · ".join(about) + " · open" * is_open, takes)


def _offer(offer: Offer) -> Content:
    size = f"{'about ' * offer.is_rounded}{gigabytes(offer.download_bytes)} to fetch"
    about = (size, "sees pictures" if offer.sees else "text only", f"licence {offer.licence}")
    needs = f"for machines of {offer.memory_gb} GB and more · " if offer.memory_gb else ""
    return _lines(offer.title, " · ".join(about), f"not here · {needs}{offer.name}")


def _lines(name: str, about: str, takes: str) -> Content:
    return Content.assemble(
        (one_line(name), "bold"), f"  {one_line(about)}\n", (f"  {one_line(takes)}", QUIET)
    )
