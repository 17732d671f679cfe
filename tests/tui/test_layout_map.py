"""The line that says what resident rows are of, as a value."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.layout import Run
from ds4tui.engine.stats import EngineStats, SessionStats
from ds4tui.tui.layout_map import map_lines
from ds4tui.tui.panels import PanelView, kv_panel
from tests.scale import scaled
from tests.tui.test_panels import EXTEND

LAYOUT = (
    Run("system", 0, 200), Run("user", 200, 400), Run("image", 400, 410), Run("user", 410, 500),
    Run("assistant", 500, 800),
)  # fmt: skip
SESSION = SessionStats(
    1, "READY", 1000, 9000, 2, 64, "person: hi", used_s=5.0, layout=LAYOUT, snapshots_at=(200, 1000)
)


def test_kinds_have_signs_and_a_small_picture_is_seen() -> None:
    line, marks, legend = map_lines(SESSION, 500, 20, has_legend=True)
    assert line.plain == "████▄▄▄▄◆▄▀▀▀▀▀▀▀▀▀▀"
    assert marks.plain == "    ╵     ┃        ╵"
    assert legend.plain == (
        "█ system 200\n▄ asked 290\n▀ replies 500\n◆ images 10\n╵ 2 snapshots\n┃ common to here"
    )
    wide = map_lines(SESSION, 500, 60, has_legend=True)[2].plain
    assert wide.startswith("█ system 200  ▄ asked 290  ▀ replies 500") and "\n" in wide


def test_what_was_rewound_is_cut_and_a_plain_text_has_one_kind() -> None:
    short = replace(SESSION, resident_tokens=300, snapshots_at=())
    assert [line.plain for line in map_lines(short, 0, 6)] == ["████▄▄"]
    plain = replace(SESSION, layout=(Run("text", 0, 900),), snapshots_at=())
    assert [line.plain for line in map_lines(plain, 0, 4)] == ["━━━━"]
    assert map_lines(SessionStats(1), 0, 10, has_legend=True) == []


def test_the_panel_has_the_map_of_who_worked_last_and_one_of_each_session() -> None:
    other = replace(SESSION, session=2, used_s=9.0, layout=(Run("system", 0, 1000),))
    stats = EngineStats(
        "idle", context_tokens=8192, resident_tokens=1000, sessions=(SESSION, other),
        decision=replace(EXTEND, session=2, common=500),
    )  # fmt: skip
    text = kv_panel(PanelView(stats), 32).plain
    resident = text.partition("Last decision")[0]
    assert "█" * 32 in resident and "█ system 1,000" in resident and "┃ common" in resident
    sessions = text.partition("Sessions")[2]
    assert "▄▄" in sessions and "█" * 32 in sessions
    one = kv_panel(PanelView(replace(stats, sessions=(SESSION,))), 32).plain
    assert "▄ asked 290" in one and "Sessions" not in one
    assert "common to here" not in one  # the decision was another session's


KINDS = ("system", "user", "assistant", "tool", "image", "text", "of later")


@settings(max_examples=scaled(80), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 300)), min_size=1, max_size=9),
    st.integers(1, 3000), st.integers(0, 3000), st.integers(8, 200),
    st.lists(st.integers(0, 3000), max_size=6),
)  # fmt: skip
def test_lines_are_as_wide_as_asked(
    runs: list[tuple[str, int]], resident: int, common: int, width: int, snapshots: list[int]
) -> None:
    layout, at = [], 0
    for kind, length in runs:
        layout.append(Run(kind, at, at + length))
        at += length
    session = SessionStats(
        1, resident_tokens=resident, layout=tuple(layout), snapshots_at=tuple(sorted(snapshots))
    )
    line, *others = map_lines(session, common, width, has_legend=True)
    assert len(line) == width and " " not in line.plain
    kinds = {run.kind for run in layout if run.start < resident}
    if "image" in kinds and width >= 8 > len(kinds):
        assert "◆" in line.plain
    assert all(len(other) == width for other in others[:-1])
