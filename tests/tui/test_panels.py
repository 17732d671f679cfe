from dataclasses import replace

import pytest

from ds4tui.engine.stats import EngineStats
from ds4tui.events import Decision, EncodingProgress, PrefillProgress, Usage
from ds4tui.kernels.expert_cache import ExpertStats
from ds4tui.tui.experts import experts_section
from ds4tui.tui.panels import (
    PanelView,
    bar,
    decision_words,
    duration_words,
    encoding_words,
    ending_words,
    header_content,
    kv_panel,
    percent,
    prefill_words,
    seconds_words,
    size_words,
    status_strip,
    stored_usage_words,
    usage_words,
)
from ds4tui.tui.words import sparkline
from tests.fakes import fake_info

EXTEND = Decision(
    job_id="j", kind="extend", source="memory", grade="restore-exact", live=4973, prompt=5185,
    common=4973, kept=4973, dropped=0, evaluated=212, images="none",
    reason="212 new tokens after 4,973 that are resident",
)  # fmt: skip
REWIND = replace(
    EXTEND, kind="rewind", live=1950, common=1902, kept=1902, dropped=48, prompt=1906, evaluated=4,
    reason="fork at 1,902: 48 tokens of the old branch dropped, 4 new",
)  # fmt: skip
PREFILL = PrefillProgress("j", done=3072, total=8214, cached=2048, tokens_per_s=512.4, eta_s=10.03)
STATS = EngineStats(
    "idle", model="m", context_tokens=8192, resident_tokens=4973, kv_bytes=218_000_000,
    weights_bytes=98_000_000, compute_path="CPU; q4_1 matrices", decision=EXTEND,
    usage=Usage(5185, 4973, 212, 187, 330.0, 414.0, 3866.0), requests=4,
    total_prompt_tokens=1000, total_cached_tokens=839, total_evaluated_tokens=161,
    total_completion_tokens=700,
)  # fmt: skip


def test_prefill_is_never_a_bare_spinner() -> None:
    words = prefill_words(PREFILL)
    assert words == "prefill 3,072/8,214 (37%) 512 tok/s ETA 11s, 2,048 from cache"
    done = replace(PREFILL, done=8214)
    assert prefill_words(done) == "prefill 8,214/8,214 (100%) 512 tok/s, 2,048 from cache"
    slowed = replace(PREFILL, slowed="prefill is given 20 % of the time while 1 reply is written")
    assert prefill_words(slowed) == f"{words}; {slowed.slowed}"
    start = replace(PREFILL, done=0, tokens_per_s=0.0, eta_s=0.0)
    assert prefill_words(start) == "prefill 0/8,214 (0%), 2,048 from cache"


def test_decisions_in_a_few_words() -> None:
    assert decision_words(EXTEND) == "extend +212"
    assert decision_words(REWIND) == "rewind -48 -> 1,902, then +4"
    assert decision_words(replace(EXTEND, kind="cold", evaluated=5185)) == "cold 5,185"


def test_a_finished_answer_tells_its_numbers() -> None:
    assert usage_words(STATS.usage, "stop") == (
        "TTFT 0.33 s · prefill 212 at 512 t/s, 4,973 cached · decode 187 at 48.1 t/s · stop"
    )
    assert usage_words(Usage(), "cancelled", "cancelled") == "stopped"


@pytest.mark.parametrize(
    ("stop_reason", "status", "words"),
    [
        ("stop", "complete", "stop"),
        ("length", "complete", "cut off at the length limit"),
        ("cancelled", "cancelled", "stopped"),
        ("stop", "failed", "failed"),
        ("stop", "partial", "interrupted"),
    ],
)
def test_every_ending_has_its_words(stop_reason: str, status: str, words: str) -> None:
    assert ending_words(stop_reason, status).startswith(words)


def test_stats_of_other_versions_do_not_break_a_loaded_message() -> None:
    assert stored_usage_words(None, "complete") == "stop"
    assert stored_usage_words({"usage": {"new_field": 3}, "stop_reason": "odd"}, "complete") == (
        "stop"
    )
    assert "TTFT 85 ms" in stored_usage_words({"usage": {"ttft_ms": 85.2}}, "cancelled")


def test_the_panel_tells_what_is_resident_and_why() -> None:
    text = kv_panel(PanelView(STATS, server_url="http://127.0.0.1:8484"), 32).plain
    for part in (
        "resident  4,973 / 8,192 (60%)",
        "size      218.0 MB",
        "weights   98.0 MB",
        "extend +212",
        EXTEND.reason,
        "common ┃  4,973 of 4,973 resident",
        "TTFT      0.33 s",
        "prefill   512 t/s",
        "decode    48.1 t/s",
        "reused    83% of 1,000 tokens",
        "CPU; q4_1 matrices",
        "http://127.0.0.1:8484",
    ):
        assert part in text, part
    assert "dropped" not in text


def test_the_panel_tells_what_was_dropped_and_who_is_at_work() -> None:
    at_work = replace(
        STATS, state="prefilling", job_id="j", origin="agent", queued_jobs=2, decision=REWIND,
        prefill=PREFILL,
    )  # fmt: skip
    text = kv_panel(PanelView(at_work), 32).plain
    assert "dropped   48" in text and prefill_words(PREFILL) in text
    assert "prefilling for an HTTP client · 2 queued" in text
    assert "F4 turns it on" in text


def test_a_stopped_prefill_is_told_by_what_was_evaluated() -> None:
    cold = replace(EXTEND, kind="cold", live=0, common=0, kept=0, prompt=7769, evaluated=7769)
    stopped = replace(
        STATS, decision=cold, usage=Usage(7769, 0, 2560), total_prompt_tokens=7769,
        total_cached_tokens=0, total_evaluated_tokens=2560,
    )  # fmt: skip
    text = kv_panel(PanelView(stopped), 40).plain
    assert "evaluated 2,560 of 7,769 (stopped)" in text and "0% of 2,560 tokens" in text
    at_work = replace(stopped, job_id="j", state="prefilling", prefill=PREFILL)
    assert "(stopped)" not in kv_panel(PanelView(at_work), 40).plain


def test_the_panel_without_a_model_tells_what_is_opened() -> None:
    assert "opening m: reading" in kv_panel(PanelView(opening="opening m: reading"), 32).plain
    assert "no model is open" in kv_panel(PanelView(), 32).plain


@pytest.mark.parametrize("width", [20, 40, 76, 200])
def test_the_strip_has_two_lines_that_fit(width: int) -> None:
    at_work = replace(STATS, state="prefilling", job_id="j", origin="person", prefill=PREFILL)
    for stats in (STATS, at_work, EngineStats("idle", context_tokens=10)):
        lines = status_strip(PanelView(stats, server_url="http://127.0.0.1:8484"), width).split(
            "\n"
        )
        assert len(lines) == 2 and all(line.cell_length <= width for line in lines)
    assert status_strip(PanelView(opening="opening m"), width).cell_length <= width


def test_the_strip_shows_the_prefill_first() -> None:
    at_work = replace(STATS, state="prefilling", job_id="j", origin="person", prefill=PREFILL)
    assert prefill_words(PREFILL) in status_strip(PanelView(at_work), 100).plain
    assert "extend +212" in status_strip(PanelView(STATS), 100).plain


@pytest.mark.parametrize("width", [10, 40, 80, 200])
def test_the_header_fits_and_hides_a_title_that_does_not(width: int) -> None:
    for info in (None, fake_info()):
        content = header_content(info, "smollm2", "a title\x1b[2J of a chat", width)
        assert content.cell_length <= width and "\x1b" not in content.plain
    assert header_content(fake_info(), "", "the title", 200).plain.endswith("the title")
    assert "opening smollm2…" in header_content(None, "smollm2", "", 80).plain


def test_a_bar_is_as_wide_as_asked_and_readable_without_colour() -> None:
    assert bar(0.0, 8).plain == "─" * 8
    assert bar(0.5, 8).plain == "━━━━────"
    assert bar(0.44, 8).plain == "━━━╾────"
    assert bar(1.0, 8).plain == "━" * 8 == bar(7.0, 8).plain
    assert all(bar(n / 100, 13).cell_length == 13 for n in range(-5, 110))


def test_numbers_as_people_read_them() -> None:
    assert [seconds_words(ms) for ms in (0.4, 85.4, 330, 9990, 12_345)] == [
        "0 ms", "85 ms", "0.33 s", "9.99 s", "12.3 s",
    ]  # fmt: skip
    assert [duration_words(s) for s in (0.0, 9.2, 60, 125, 3599.5, 3780)] == [
        "0s", "10s", "1m00s", "2m05s", "1h00m", "1h03m",
    ]  # fmt: skip
    assert [size_words(n) for n in (0, 999, 1500, 92_871_040, 5e9, 2e12)] == [
        "0 B", "999 B", "2 kB", "92.9 MB", "5.0 GB", "2000.0 GB",
    ]  # fmt: skip
    assert (percent(1, 3), percent(999, 1000), percent(5, 0)) == (33, 99, 0)


def test_pictures_are_told_while_they_are_seen_and_after() -> None:
    seen = EncodingProgress("j", 1, 2, "shot.png", 850.0)
    assert encoding_words(seen) == "picture 1 of 2 is seen: shot.png, 0.85 s"
    usage = Usage(300, 0, 300, 3, 900.0, 400.0, 10.0, encode_ms=412.0)
    assert "0 cached · pictures 0.41 s · decode 3" in usage_words(usage, "stop")


def test_the_panel_tells_of_pictures_once_one_was_seen() -> None:
    assert "Pictures" not in kv_panel(PanelView(replace(STATS, encoder="mmproj.gguf")), 32).plain
    seen = replace(
        STATS, encoder="mmproj-of-a-very-long-name-Q8_0.gguf", images_encoded=2, images_held=1,
        images_bytes=590_000, images_budget_bytes=64_000_000, last_encode_ms=4290.0,
    )  # fmt: skip
    text = kv_panel(PanelView(seen), 32).plain
    assert "seen      2, last in 4.29 s" in text and "held      1 · 590 kB of 64.0 MB" in text
    assert "by mmproj-of-a-very-long-name-Q…" in text


def test_experts_that_are_copied_on_demand_have_a_section() -> None:
    experts = ExpertStats(8_000_000_000, 6_000_000_000, 400, 300, 100, 7, 2_000_000_000, 4000.0)
    text = experts_section(EngineStats(experts=experts), 40)
    assert text is not None
    for words in ("6.0 GB of 8.0 GB", "75% of 400", "2.0 GB at 500 MB/s", "let go"):
        assert words in text.plain
    fresh = experts_section(EngineStats(experts=ExpertStats(8_000_000_000)), 40)
    assert fresh is not None and "%" not in fresh.plain
    assert experts_section(EngineStats(), 40) is None


def test_the_engine_tells_how_fast_tokens_came_and_nothing_else_moves_it() -> None:
    rates = (10.0, 20.0, 40.0, 0.0, 30.0)
    text = kv_panel(PanelView(replace(STATS, decode_rates=rates)), 32).plain
    assert "t/s       ▂▄█▁▆" in text and "30.0 now, 40.0 best" in text
    assert "now," not in kv_panel(PanelView(STATS), 32).plain


def test_a_sparkline_has_as_many_bars_as_fit_the_newest_last() -> None:
    assert sparkline((1.0, 2.0, 4.0), 2) == "▄█" and sparkline((5.0,), 9) == "█"
    assert sparkline((), 5) == sparkline((0.0, 0.0), 5) == sparkline((1.0,), 0) == ""


@pytest.mark.parametrize("width", [32, 60])
def test_no_line_of_the_panel_is_wider_than_it_wraps_to(width: int) -> None:
    """All that there can be to tell, in the narrowest panel and in a wide one."""
    stats = replace(
        STATS, state="prefilling", job_id="j", origin="agent", queued_jobs=3, prefill=PREFILL,
        decode_rates=(812.25,) * 40, memory_active_bytes=9 * 10**11, memory_peak_bytes=9 * 10**11,
        cache_budget_bytes=10**11, parked_states=3, parked_tokens=340_551, parked_bytes=10**10,
    )  # fmt: skip
    view = PanelView(stats, server_url="http://127.0.0.1:8484")
    content = kv_panel(view, width)
    assert content.is_same(kv_panel(view, width))
    rows = [
        line for line in content.plain.split("\n") if line.startswith(("t/s", "━", "─", "memory"))
    ]
    assert rows and max(map(len, rows)) <= width
    assert max(line.cell_length for line in content.wrap(width)) <= width
