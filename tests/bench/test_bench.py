"""`ds4tui bench`: the order of turns, what is made of the times, and a real race of tiny models."""

import argparse
import csv
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui import bench
from ds4tui.bench import llama_cpp
from ds4tui.bench.memory import resident_bytes_of
from ds4tui.bench.report import csv_text, summary, table
from ds4tui.bench.text import bench_ids
from ds4tui.bench.walk import BenchResult, Leg, Side, walk
from ds4tui.errors import EngineError, ModelError, UsageError
from ds4tui.kernels.cpu.threads import cpus
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.resolve import catalogued_path
from tests.golden import golden_path


class Fake:
    """Takes `prefill_s` a prompt token and `decode_s` a step, each walk a second slower."""

    about = "fake"

    def __init__(self, name: str, diary: list, prefill_s: float, decode_s: float) -> None:
        self.name, self.diary = name, diary
        self.prefill_s, self.decode_s = prefill_s, decode_s
        self.walks, self.live = 0, 0

    def leg(self, ids: Sequence[int], decode_tokens: int) -> Leg:
        self.diary.append((self.name, len(ids)))
        new, self.live = len(ids) - self.live, len(ids)
        steps = decode_tokens - 1
        return Leg(
            len(ids), new, new * self.prefill_s + self.walks, steps, steps * self.decode_s,
            kv_bytes=len(ids) * 10_000, memory_peak_bytes=(self.walks + 1) * 10**8,
        )  # fmt: skip

    def forget(self) -> None:
        self.live, self.walks = 0, self.walks + 1

    def close(self) -> None:
        pass


def race(repeats: int = 1) -> tuple[list, list[Side]]:
    diary: list = []
    walkers = [Fake("ours", diary, 0.01, 0.1), Fake("theirs", diary, 0.02, 0.05)]
    sides = walk(walkers, range(100), (40, 100), 11, repeats, rest=lambda s: None)
    return diary, sides


def test_turns_alternate_at_each_frontier() -> None:
    diary, _ = race(repeats=2)
    warm_up, first, second = diary[:2], diary[2:6], diary[6:]
    assert warm_up == [("ours", 32), ("theirs", 32)]
    assert first == [("ours", 40), ("theirs", 40), ("theirs", 100), ("ours", 100)]
    assert second == [("theirs", 40), ("ours", 40), ("ours", 100), ("theirs", 100)]


def test_rates_are_of_the_whole_walk_and_medians_of_the_repeats() -> None:
    _, (ours, theirs) = race(repeats=3)
    assert [leg.prefill_tokens for leg in ours.legs] == [40, 60], "each leg its new tokens only"
    assert [leg.prefill_s for leg in ours.legs] == pytest.approx([2.4, 2.6]), "median walk: + 2 s"
    assert ours.prefill_tps == pytest.approx(100 / 5.0)
    assert (ours.decode_tps, theirs.decode_tps) == pytest.approx((10, 20))


def result(busy: float = 0.0, peer: bool = True) -> BenchResult:
    _, (ours, theirs) = race()
    return BenchResult("tiny.gguf", 2, 1, busy, ours, theirs if peer else None)


def test_ratios_are_ours_over_theirs() -> None:
    values = json.loads(json.dumps(summary(result())))
    assert values["ratio_prefill"] == pytest.approx((100 / 3) / (100 / 4))
    assert values["ratio_decode"] == pytest.approx(0.5)
    assert values["theirs"]["legs"][1]["prefill_tokens"] == 60
    alone = summary(result(peer=False))
    assert alone["theirs"] is alone["ratio_prefill"] is alone["ratio_decode"] is None


def test_the_table_has_a_row_for_each_frontier_and_the_whole() -> None:
    rates, memory = (part.splitlines() for part in table(result()).split("\n\n")[-2:])
    assert [line.split()[0] for line in rates] == ["tokens", "40", "100", "all"]
    assert rates[-1].split()[1:] == ["33.3", "25.0", "10.0", "20.0", "1.33", "0.50"]
    assert [line.split()[0] for line in memory] == ["MB", "40", "100", "all"]
    assert memory[1].split()[1:] == ["0.4", "0.4", "200.0", "200.0"]
    assert memory[-1].split()[1:] == ["1.0", "1.0", "200.0", "200.0"]
    assert "GPU" not in memory[0], "what nobody knows has no column"
    assert "ratio" not in table(result(peer=False))
    assert "busy" in table(result(busy=3.0)) and "busy" not in table(result())


def test_memory_is_the_most_of_all_walks() -> None:
    _, (ours, _) = race(repeats=3)
    assert [leg.memory_peak_bytes for leg in ours.legs] == [4 * 10**8] * 2
    assert (ours.kv_bytes, ours.memory_peak_bytes) == (10**6, 4 * 10**8)
    assert ours.device_peak_bytes is None
    assert summary(result())["ours"]["kv_bytes"] == 10**6


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_a_row_an_interval_and_the_same_columns_without_a_peer() -> None:
    both, alone = rows_of(csv_text(result())), rows_of(csv_text(result(peer=False)))
    assert [row["frontier"] for row in both] == ["40", "100"] and both[0].keys() == alone[0].keys()
    assert both[1]["prefill_tokens"] == "60" and both[1]["theirs_kv_bytes"] == "1000000"
    assert float(both[1]["ratio_decode"]) == pytest.approx(0.5)
    assert float(both[1]["ours_decode_tps"]) == float(alone[1]["ours_decode_tps"]) == 10
    empty = {name for name, value in alone[0].items() if not value}
    assert empty >= {"ratio_prefill", "ratio_decode", "theirs_prefill_s", "ours_device_peak_bytes"}


def test_what_llama_cpp_says_of_its_buffers_is_added_up() -> None:
    log = "llama_kv_cache: CPU KV buffer size =  2.25 MiB\n CPU KV buffer size = 11.25 MiB\n"
    assert llama_cpp.kv_bytes_in_log(log) == int(13.5 * 2**20)
    assert llama_cpp.kv_bytes_in_log("nothing") is None


def test_memory_of_another_process_is_read_and_of_none_is_not_known() -> None:
    program = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()  # it runs
        assert (resident_bytes_of(process.pid) or 0) > 10**6
        process.communicate(b"\n")
    assert resident_bytes_of(process.pid) is None


def test_the_text_is_the_same_every_time_and_long_enough() -> None:
    class Words:
        def encode(self, text: str) -> list[int]:
            return [len(word) for word in text.split()]

    ids = bench_ids(Words(), 5000)
    assert len(ids) == 5000 and ids == bench_ids(Words(), 5000)
    assert ids[:100] == bench_ids(Words(), 100)


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, exit_on_error=False)
    bench.add_arguments(parser)
    return parser.parse_args(words)


def test_arguments_have_defaults_even_where_the_parser_suppresses_them() -> None:
    args = parse()
    assert (args.against, args.frontiers, args.repeats) == (None, bench.FRONTIERS, 1)
    assert not hasattr(args, "model"), "a setting: its default is not the parser's"
    assert parse("--frontiers", "5,9").frontiers == (5, 9)


@pytest.mark.parametrize(
    "words",
    ["--frontiers 9,5", "--frontiers 0", "--repeats 0", "--decode-tokens 1", "--against x"],
)
def test_wrong_arguments_are_refused(words: str) -> None:
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parse(*words.split())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--frontiers abc", "'abc' is not a whole number"),
        ("--frontiers 5,", "'' is not a whole number"),
        ("--frontiers 5,5", "'5,5': each length must be more"),
        ("--threads 1.5", "'1.5' is not a whole number"),
        ("--repeats 0", "must be at least 1, not 0"),
        ("--decode-tokens 1", "must be at least 2, not 1"),
    ],
)
def test_wrong_arguments_are_told_in_words(words: str, complaint: str) -> None:
    with pytest.raises(argparse.ArgumentError) as caught:
        parse(*words.split())
    assert complaint in str(caught.value) and "_" not in caught.value.message


def test_the_file_of_rows_is_open_before_the_work_and_kept_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = tmp_path / "new.csv", tmp_path / "old.csv"
    old.write_text("of last week")

    def fail(*_: object, **more: object) -> None:
        assert opened.exists()
        raise EngineError("The device is gone.")

    monkeypatch.setattr(bench.walk, "run_bench", fail)
    for opened in (new, old):
        with pytest.raises(EngineError):
            bench.main(parse("-m", str(golden_path("llama")), "--csv", str(opened)))
    assert not new.exists() and old.read_text() == "of last week"


def test_a_missing_peer_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install xllamacpp"):
        llama_cpp.LlamaCpp(golden_path("llama"), 100, 1)


def test_a_peer_that_cannot_read_the_file_is_told(tmp_path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(EngineError, match=r"llama\.cpp did not start: .*\w"):
        llama_cpp.LlamaCpp(broken, 100, 1)


def test_a_real_race(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Ours and llama.cpp on the same tiny file, as the command runs it."""
    path = str(golden_path("llama"))
    file = tmp_path / "rows.csv"
    args = parse("-m", path, "--against", "llama.cpp", "--frontiers", "24,60", "--json",
                 "--csv", str(file))  # fmt: skip
    args.decode_tokens = 5
    assert bench.main(args) == 0
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert values["ratio_prefill"] > 0 and values["ratio_decode"] > 0
    for side in (values["ours"], values["theirs"]):
        assert [leg["prefill_tokens"] for leg in side["legs"]] == [24, 36]
        assert [leg["decode_steps"] for leg in side["legs"]] == [4, 4]
        assert all(leg["kv_bytes"] > 10_000 for leg in side["legs"])
        assert all(leg["memory_peak_bytes"] > 10**7 for leg in side["legs"])
    row = rows_of(file.read_text())[1]
    assert float(row["ours_prefill_tps"]) == values["ours"]["legs"][1]["prefill_tps"]
    assert f"{values['threads']} threads" in values["theirs"]["about"]


def test_csv_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    args = parse("-m", str(golden_path("llama")), "--frontiers", "24", "--csv")
    args.decode_tokens = 2
    assert bench.main(args) == 0
    out = capsys.readouterr().out
    assert [row["frontier"] for row in rows_of(out)] == ["24"] and out.count("\n") == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--csv", "--json"], "both have standard output"),
        (["--csv", "no/such/folder.csv"], "no such folder"),
        (["--csv", "."], "it is a folder"),
    ],
)
def test_output_that_cannot_be_is_refused_before_the_work(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        bench.main(parse("-m", "no such model", *words))


def test_a_damaged_model_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = golden_path("llama")
    known = replace(CATALOGUE["smollm2"], file_bytes=path.stat().st_size)
    monkeypatch.setitem(CATALOGUE, "smollm2", known)
    place = catalogued_path(known, tmp_path)
    place.parent.mkdir()
    place.write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match="smollm2 is damaged"):
        bench.main(parse("--data-dir", str(tmp_path), "-m", "smollm2"))
    out, err = capsys.readouterr()
    assert out == "" and "smollm2: checking" in err


def test_more_threads_than_cpus_are_refused() -> None:
    with pytest.raises(UsageError, match="more than the"):
        bench.walk.run_bench(
            golden_path("llama"), frontiers=[64], decode_tokens=2, threads=1 + cpus()
        )


def test_a_context_that_is_too_short_is_told_before_the_text_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench.walk, "bench_ids", lambda *_: pytest.fail("the text was made"))
    with pytest.raises(UsageError, match="the model holds"):
        bench.walk.run_bench(golden_path("llama"), frontiers=[10**9], decode_tokens=2)


def test_a_walk_beyond_the_models_context_is_refused() -> None:
    with pytest.raises(UsageError, match="the model holds 512"):
        bench.main(parse("-m", str(golden_path("llama")), "--frontiers", "24,600"))


def test_nothing_heavy_is_imported_to_parse() -> None:
    code = (
        "import argparse, sys; from ds4tui import bench; "
        "bench.add_arguments(argparse.ArgumentParser()); "
        "print([m for m in ('mlx', 'numpy', 'textual', 'starlette') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
