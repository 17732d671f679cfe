"""What the agents panel says: pure functions of snapshots."""

from dataclasses import replace

import pytest

from ds4tui.agents import AgentRequest
from ds4tui.events import Decision, PrefillProgress, Usage
from ds4tui.tui.agents import agents_head, agents_title, request_detail, request_line
from ds4tui.tui.words import clock_words
from tests.tui.test_decisions import FORK

WAITING = AgentRequest(
    3,
    "opencode",
    "/v1/chat/completions",
    "waiting",
    1e9,
    job_id="j",
    begins="fix\nit",
    conversation_id=7,
)
DECIDED: Decision = replace(FORK, prompt=12_345, kept=12_000)
READING = replace(
    WAITING,
    state="prefilling",
    decision=DECIDED,
    prefill=PrefillProgress("j", 37, 100, 12_000, 512.0, 1.0),
)
WRITING = replace(READING, state="writing", written=17, written_per_s=48.06)
DONE = replace(
    WRITING,
    state="done",
    stop_reason="stop",
    usage=Usage(12_400, 12_001, 399, 20, 100.0, 90.0, 400.0),
    written=20,
    ended_s=1e9 + 61,
)
FAILED = replace(DONE, state="failed", stop_reason="failed", error="It [b]broke[/b].\x1b[2J")


@pytest.mark.parametrize("width", [10, 40, 72, 120, 190])
@pytest.mark.parametrize("request_", [WAITING, READING, WRITING, DONE, FAILED])
def test_a_request_is_one_line_that_fits(request_: AgentRequest, width: int) -> None:
    line = request_line(request_, width)
    assert len(line.plain) <= width and "\n" not in line.plain and "\x1b" not in line.plain
    assert len(agents_head(width).plain) <= width
    assert "\x1b" not in request_detail(request_, width).plain


def test_where_there_is_little_room_the_decision_is_told_and_the_rate_is_not() -> None:
    assert "  rewind -48 ->" in request_line(READING, 76).plain
    assert "t/s" not in request_line(READING, 76).plain and "t/s" in request_line(READING, 92).plain
    assert "rate" not in agents_head(76).plain and "rate" in agents_head(92).plain


def test_the_columns_say_what_is_known_by_now() -> None:
    assert request_line(WAITING, 100).plain.split()[1:] == ["opencode", "waiting", *"----"]
    reading = request_line(READING, 140).plain
    assert "reading 37%" in reading and "12k" in reading and "512 t/s" in reading
    assert FORK.reason[:20] in reading
    assert request_line(WRITING, 100).plain.split()[2:7] == ["writing", "12k", "12k", "17", "48.1"]
    assert request_line(DONE, 80).plain.split()[2:6] == ["done", "12k", "12k", "20"]


def test_the_detail_tells_it_in_words() -> None:
    told = request_detail(READING, 100).plain
    assert "opencode, /v1/chat/completions" in told and "fix it" in told
    assert DECIDED.reason.split(":")[0] in told and "prefill 37/100 (37%)" in told
    assert "Enter reads it as it is written" in told
    ended = request_detail(DONE, 100).plain
    assert (
        clock_words(1e9 + 61) in ended
        and "prefill 399" in ended
        and "12,001 cached" in ended
        and "Enter opens it" in ended
    )
    assert "It [b]broke[/b]." in request_detail(FAILED, 100).plain
    assert "as no conversation" in request_detail(replace(DONE, conversation_id=None), 100).plain


def test_the_title_counts_who_is_at_work() -> None:
    assert agents_title((READING, DONE, WAITING)) == "Agents · 2 at work"
    assert agents_title((DONE,)) == "Agents"
