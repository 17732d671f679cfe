"""The table of `ds4tui models` says what headers say, and whether it fits, with both numbers."""

import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ds4tui.cli import main
from ds4tui.library import facts_cache, headers, mlx_format, screens
from ds4tui.library.headers import ARCHITECTURES, OTHER_NAMES, read_facts
from ds4tui.library.listing import list_models, listing_json, listing_text
from ds4tui.library.recommended import AS_OF, TEXT, VISION, catalogue_text
from ds4tui.library.resolve import models_dir
from tests.golden import golden_path
from tests.golden.files import projector_path
from tests.library.stores import hub_file, mlx_folder, model_file


@pytest.fixture
def data(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # What headers said is kept there, and must not be another test's.
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(own_home.parent / "cache"))
    return own_home / "data"


def lines(data: Path, available_bytes: int) -> list[str]:
    return listing_text(list_models(data, available_bytes)).splitlines()


def test_a_model_is_a_line_of_facts(data: Path) -> None:
    path = model_file(models_dir(data) / "tiny.gguf")
    head, row = lines(data, 10**12)[:2]
    assert head.split() == "NAME ARCHITECTURE QUANT SIZE CONTEXT FITS VISION WHERE".split()
    assert row.split()[:6] == ["tiny", "llama", "Q4_0", "0.00", "GB", "2,048"]
    assert "yes, 0.00 GB of 1,000 GB" in row and " no " in row
    assert row.endswith(f"ds4tui: ~/{path.relative_to(data.parent)}")


def test_whether_it_fits_is_told_with_both_numbers(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = read_facts(model_file(models_dir(data) / "tiny.gguf"))
    whole = facts.weights_bytes + 2048 * facts.kv_bytes_per_token
    assert "yes, " in lines(data, whole)[1]
    part = facts.weights_bytes + 1000 * facts.kv_bytes_per_token
    assert "1,000 tokens, all: 0.00 GB of 0.00 GB" in lines(data, part)[1]
    assert "no, weights: 0.00 GB of 0.00 GB" in lines(data, facts.weights_bytes)[1]
    row = list_models(data, part).rows[-1]
    assert row.plan is not None and row.plan.needed_bytes == whole


@pytest.mark.parametrize("family", sorted(ARCHITECTURES))
def test_the_assumed_memory_is_what_opening_counts(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """On this machine: the same weights, and keys and values but for the slack of buffers."""
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.engine.holding import required_bytes
    from ds4tui.engine.models.registry import FAMILIES
    from ds4tui.kernels import choice

    monkeypatch.delenv("DS4TUI_KERNELS", raising=False)
    path = golden_path(family)
    with GGUFFile.open(path) as gguf:
        chosen, facts = choice.current().path(), read_facts(path)
        assert facts.weights_bytes == required_bytes(gguf, chosen)
        config = FAMILIES[family].config(gguf)
        tokens = 2**16  # so many that the rounding of buffers matters little
        ours = facts.kv_bytes_per_token * tokens + facts.kv_fixed_bytes
        theirs = config.kv_bytes(tokens, chosen)
        hybrids = "qwen3next", "qwen35", "qwen35moe", "qwen4exp", "glm5-next"
        fixed = family in ("gemma3", "deepseek4", *hybrids)
        assert bool(facts.kv_fixed_bytes) == fixed
        # Opening counts the largest layer twice: pools of 4 rows are more than all else here.
        assert ours <= theirs <= (1.3 if family == "deepseek4" else 1.25) * ours
        assert facts.context_tokens == config.context_tokens


def test_the_shortest_context_is_the_engine_s() -> None:
    from ds4tui.cache import memory
    from ds4tui.engine.models.registry import CONTEXT_TOKENS_MIN

    assert CONTEXT_TOKENS_MIN == memory.CONTEXT_TOKENS_MIN


def test_the_architectures_are_the_engine_s() -> None:
    """A family that joins the registry joins headers.ARCHITECTURES too."""
    from ds4tui.engine.models import registry

    assert set(registry.FAMILIES) == ARCHITECTURES
    assert registry.OTHER_NAMES == OTHER_NAMES


def test_what_is_not_read_yet_is_listed_as_such(data: Path) -> None:
    model_file(models_dir(data) / "new.gguf", architecture="qwen99")
    assert "not read yet" in lines(data, 10**12)[1]


@pytest.mark.parametrize(
    "keys",
    [
        {"llama.context_length": "much"},
        {"llama.block_count": np.int32(-3)},
        {"llama.attention.head_count_kv": [np.uint32(2), np.uint32(0)]},
        {"llama.attention.head_count": np.uint32(0)},
    ],
)
def test_odd_keys_do_not_stop_the_list(data: Path, keys: dict[str, object]) -> None:
    model_file(models_dir(data) / "odd.gguf", **keys)
    listing = list_models(data, 10**9)
    assert listing.rows[-1].facts is not None
    assert listing_text(listing) and json.loads(listing_json(listing))


def test_what_cannot_be_read_is_listed_with_its_reason(data: Path, own_home: Path) -> None:
    folder = models_dir(data)
    model_file(folder / "fine.gguf")
    (folder / "broken.gguf").write_bytes(b"no model")
    whole = model_file(folder / "short.gguf", 5)
    whole.write_bytes(whole.read_bytes()[:-100])
    mlx_folder(own_home / ".lmstudio/models/mlx-community/Qwen3-8B-4bit")
    text = "\n".join(lines(data, 10**9))
    assert "broken (ds4tui): broken.gguf is not a GGUF file: it has only 8 bytes." in text
    assert "short (ds4tui): short.gguf is truncated" in text
    assert "mlx-community/Qwen3-8B-4bit (LM Studio): MLX format, not read; get GGUF" in text
    assert "smollm2 (known): not here: ds4tui pull smollm2" in text


def test_names_of_files_do_not_steer_the_terminal(data: Path) -> None:
    model_file(models_dir(data) / "a\x1b[2J\nb.gguf")
    (models_dir(data) / "c\x1b[2J.gguf").write_bytes(b"x")
    assert "\x1b" not in "\n".join(lines(data, 10**9))


def test_a_narrow_terminal_cuts_the_path_alone(data: Path) -> None:
    model_file(models_dir(data) / "folder-with-a-long-name" / "and-another-one" / "tiny.gguf")
    listing = list_models(data, 10**9)
    whole, narrow = (listing_text(listing, width).splitlines()[1] for width in (None, 150))
    assert len(narrow) == 150 < len(whole)
    assert narrow.endswith("tiny.gguf") and "  ds4tui: ~/" in narrow and "…" in narrow
    assert narrow[:70] == whole[:70]
    assert listing_text(listing, 20).splitlines()[1].endswith("tiny.gguf")


def test_vision_is_told(data: Path, own_home: Path) -> None:
    model_file(own_home / ".lmstudio/models/o/r/m.gguf", 1)
    eyes = model_file(own_home / ".lmstudio/models/o/r/mmproj-m.gguf", 2, "clip")
    (row,) = (row for row in list_models(data, 10**9).rows if row.facts)
    assert row.vision_part == eyes
    assert " yes " in lines(data, 10**9)[1]


def test_in_a_folder_of_many_models_headers_say_who_sees(data: Path) -> None:
    model_file(models_dir(data) / "other.gguf", 1)
    shutil.copy(golden_path("qwen3vl"), models_dir(data) / "tiny-a.gguf")
    shutil.copy(projector_path("qwen3vl"), models_dir(data) / "mmproj-x.gguf")
    rows = {row.name: row for row in list_models(data, 10**9).rows if row.facts}
    assert set(rows) == {"tiny-a", "other"}  # an encoder is no model
    assert rows["tiny-a"].vision_part == models_dir(data) / "mmproj-x.gguf"
    assert rows["other"].vision_part is None


def test_what_the_encoder_of_the_package_reads_and_what_not_is_told(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens, "MMPROJ", projector_path("qwen3vl"))
    monkeypatch.setattr(screens, "is_made_for", lambda path: path.stem == "tiny-a")
    for name in ("tiny-a", "tiny-b"):
        path = models_dir(data) / f"{name}.gguf"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(golden_path("qwen3vl"), path)
    listing = list_models(data, 10**9)
    text = listing_text(listing)
    assert "  screens  ds4tui: " in text and "  no       ds4tui: " in text
    assert f"\ntiny-a reads {screens.READS}; {screens.READS_NOT}." in text
    told = {m["name"]: m["vision_limits"] for m in json.loads(listing_json(listing))["models"]}
    assert "misreads" in told["tiny-a"] and told["tiny-b"] is None


def test_json_says_the_same(data: Path, own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub_file(own_home / ".cache/huggingface/hub", "o/r", "m-Q4_0.gguf")
    assert main(["models", "--json", "--data-dir", str(data)]) == 0
    told = json.loads(capsys.readouterr().out)
    missing, model = told["models"]
    assert missing["name"] == "smollm2" and "ds4tui pull" in missing["problem"]
    assert model["name"] == "o/r/m-Q4_0.gguf" and model["held_by"] == "Hugging Face"
    assert model["architecture"] == "llama" and model["architecture_is_read"] is True
    assert model["fits"] is True and model["needed_bytes"] <= told["available_bytes"]
    assert model["context_tokens"] == model["fitting_context_tokens"] == 2048
    assert model["problem"] is None and model["vision_part"] is None


def test_fifty_files_take_less_than_a_second_and_no_mlx(data: Path) -> None:
    for number in range(50):
        model_file(models_dir(data) / f"m{number}.gguf", number)
    headers.assumed_path()  # asks a compiler for its version, once a process
    began_s = time.perf_counter()
    assert len(list_models(data, 10**9).rows) == 51
    assert time.perf_counter() - began_s < 1


def test_the_list_needs_no_mlx(data: Path) -> None:
    import subprocess

    model_file(models_dir(data) / "tiny.gguf")
    code = (
        "import sys; from pathlib import Path; from ds4tui.library.listing import list_models\n"
        f"assert list_models(Path({str(data)!r})).rows[-1].facts\n"
        "print('mlx.core' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "False\n", ran.stderr


# --- what headers said is kept ---


def test_headers_are_read_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_file(models_dir(data) / "tiny.gguf")
    first = list_models(data, 10**9)
    asked: list[Path] = []

    def reading(path: Path) -> headers.Facts:
        asked.append(path)
        return read_facts(path)

    monkeypatch.setattr(facts_cache, "read_facts", reading)
    assert list_models(data, 10**9) == first and asked == []
    model_file(path, 1, **{"llama.context_length": np.uint32(4096)})
    facts = list_models(data, 10**9).rows[-1].facts
    assert facts is not None and facts.context_tokens == 4096 and asked == [path]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b"[" * 99_999, b'{"PATH": 3}', b'{"PATH": {"stamp": STAMP}}',
     b'{"PATH": {"stamp": STAMP, "facts": {"architecture": 3}}}',
     b'{"PATH": {"stamp": STAMP, "facts": {"architecture": 1, "quantisation": 2, "parameters": 3,'
     b' "file_bytes": 4, "context_tokens": 5, "weights_bytes": 6, "kv_bytes_per_token": 7,'
     b' "kv_fixed_bytes": 8}}}'],
)  # fmt: skip
def test_a_cache_of_nonsense_is_a_miss(
    data: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = model_file(models_dir(data) / "tiny.gguf")
    stamp = json.dumps(facts_cache._stamp(path)).encode()
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(own_folders / "cache"))
    cache = own_folders / "cache" / "models.json"
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_bytes(content.replace(b"PATH", str(path).encode()).replace(b"STAMP", stamp))
    assert list_models(data, 10**9).rows[-1].facts == read_facts(path)
    assert json.loads(cache.read_bytes())[str(path)]["facts"]["architecture"] == "llama"


def test_a_cache_that_cannot_be_written_costs_nothing_else(
    data: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_folders / "file").write_bytes(b"")
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(own_folders / "file"))
    path = model_file(models_dir(data) / "tiny.gguf")
    assert list_models(data, 10**9).rows[-1].facts == read_facts(path)


def test_a_part_that_goes_is_noticed(data: Path) -> None:
    for number in (1, 2):
        parts = {"split.no": np.uint16(number - 1), "split.count": np.uint16(2)}
        tensor = f"t{number}.weight"
        model_file(
            models_dir(data) / f"m-0000{number}-of-00002.gguf", number, tensor=tensor, **parts
        )
    row = list_models(data, 10**9).rows[-1]
    assert row.name == "m" and row.facts is not None
    second = models_dir(data) / "m-00002-of-00002.gguf"
    assert row.facts.file_bytes == row.path.stat().st_size + second.stat().st_size
    second.unlink()
    assert "missing beside it: m-00002" in list_models(data, 10**9).rows[-1].problem


# --- the catalogue ---


def test_the_catalogue_is_consistent() -> None:
    assert len(AS_OF) == len("2026-11-30")
    for models, is_vision in ((TEXT, False), (VISION, True)):
        assert [m.memory_gb for m in models] == sorted(m.memory_gb for m in models)
        for model in models:
            assert model.repo.count("/") == 1 and model.file.endswith(".gguf")
            assert model.licence and model.title and model.architecture
            assert bool(model.vision_file) == bool(model.vision_bytes) == is_vision
            needed_gb = (model.file_bytes + model.vision_bytes) / 1e9
            assert 0.1 < needed_gb < 0.75 * model.memory_gb


def test_the_catalogue_is_shown_with_date_licence_and_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "--catalogue"]) == 0
    text = capsys.readouterr().out
    assert text.strip() == catalogue_text(ARCHITECTURES)
    assert f"as published on {AS_OF}" in text
    for model in (*TEXT, *VISION):
        assert f"ds4tui pull {model.pull_name}" in text and model.licence in text
        unread = f"architecture {model.architecture}: not read yet"
        assert (unread in text) == (model.architecture not in ARCHITECTURES)
    assert main(["pull"]) == 0
    assert capsys.readouterr().out == text


def test_every_recommended_model_is_known_by_its_mlx_name() -> None:
    assert "ds4tui pull unsloth/Qwen3-4B-Instruct-2507-GGUF" in mlx_format.advice(
        "Qwen3-4B-Instruct-2507-4bit"
    )
    assert "bartowski/google_gemma-3-4b-it-GGUF" in mlx_format.advice("gemma-3-4b-it-4bit")
