"""The panel beside the conversation, on small and large screens."""

from dataclasses import replace

import pytest

from ds4tui.engine.stats import EngineStats
from ds4tui.tui.meters import PANEL_TEXT_CELLS, KVPanel
from ds4tui.tui.panels import PanelView, kv_panel
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running
from tests.tui.test_panels import PREFILL, STATS

FULL = replace(
    STATS, state="prefilling", job_id="j", prefill=PREFILL, decode_rates=(20.0, 40.0),
    memory_active_bytes=2 * 10**9, memory_peak_bytes=3 * 10**9,
)  # fmt: skip


def tell(on: Driver, assistant: FakeAssistant, stats: EngineStats) -> None:
    assistant.engine._stats = stats
    on.app._show_meters()


async def switched(on: Driver, is_shown: bool) -> KVPanel:
    """The panel, when F2 has shown or hidden it."""
    panel = on.app.query_one(KVPanel)
    await on.until(lambda: panel.is_attached and bool(panel.size.width) is panel.display)
    if panel.display is not is_shown:
        await on.press("f2")
    await on.until(lambda: panel.display is is_shown is bool(panel.size.width))
    return panel


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_the_panel_shows_all_its_lines_and_can_be_hidden(size: tuple[int, int]) -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=size) as on:
        panel = await switched(on, True)
        tell(on, assistant, FULL)
        content = kv_panel(PanelView(FULL), PANEL_TEXT_CELLS)
        wanted = [line.plain.rstrip() for line in content.wrap(PANEL_TEXT_CELLS)]
        await on.until(lambda: panel.virtual_size.height >= len(wanted), "all have room")
        fitting = [line for line in wanted[: panel.size.height - 1] if line]
        await on.until(lambda: all(line in on.screen_text() for line in fitting))
        assert len(fitting) > 10
        await switched(on, False)
        await on.until(lambda: "Last decision" not in on.screen_text())


async def test_what_comes_while_it_is_hidden_is_there_when_it_is_shown() -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=(140, 40)) as on:
        await switched(on, True)
        await switched(on, False)
        tell(on, assistant, replace(FULL, resident_tokens=77))
        await switched(on, True)
        await on.until(lambda: "77 / 8,192" in on.screen_text())
