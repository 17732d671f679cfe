"""What other programs hold is found by its name; what cannot be read is told, not fatal."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from ds4tui.errors import ModelNotFound
from ds4tui.library import discover, mlx_format, places
from ds4tui.library.discover import Found, survey
from ds4tui.library.resolve import display_name, models_dir, resolve_model
from tests.library.stores import hub_file, mlx_folder, model_file, ollama_model

QWEN = "unsloth/Qwen3-4B-GGUF"


def names(home: Path) -> dict[str, str]:
    return {model.name: model.source for model in survey(home / "own").models}


def only(home: Path) -> Found:
    (model,) = survey(home / "own").models
    return model


@pytest.mark.parametrize("folder", [".lmstudio/models", ".cache/lm-studio/models"])
def test_lm_studio(own_home: Path, folder: str) -> None:
    path = model_file(own_home / folder / "owner" / "repo" / "m-Q4_K_M.gguf")
    assert only(own_home) == Found("owner/repo/m-Q4_K_M.gguf", path, "LM Studio")


def test_an_unknown_name_tells_how_many_models_of_others_were_looked_at(own_home: Path) -> None:
    model_file(own_home / "data" / "models" / "mine.gguf", 1)
    for number, words in enumerate(["0 models", "1 model", "2 models"]):
        with pytest.raises(ModelNotFound, match=f"among {words} of other programs"):
            resolve_model("nowhere", own_home / "data")
        model_file(own_home / ".lmstudio/models/owner/repo" / f"m{number}.gguf", 10 + number)


@pytest.mark.parametrize("how", ["pointer", "settings"])
def test_lm_studio_s_folder_may_have_been_moved(own_home: Path, tmp_path: Path, how: str) -> None:
    moved = tmp_path / "elsewhere"
    if how == "pointer":
        (own_home / ".lmstudio-home-pointer").write_text(f"{moved}\n")
        top = moved / "models"
    else:
        (own_home / ".lmstudio").mkdir()
        settings = json.dumps({"downloadsFolder": str(moved)})
        (own_home / ".lmstudio" / "settings.json").write_text(settings)
        top = moved
    model_file(top / "owner" / "repo" / "m.gguf")
    assert only(own_home).name == "owner/repo/m.gguf"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"downloadsFolder": 3}', "\xff", "[" * 99999])
def test_settings_that_say_nothing_are_passed_over(own_home: Path, text: str) -> None:
    (own_home / ".lmstudio").mkdir()
    (own_home / ".lmstudio" / "settings.json").write_bytes(text.encode("latin-1"))
    assert survey(own_home / "own").models == []


def test_the_hub_s_cache(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hub_file(own_home / ".cache/huggingface/hub", QWEN, "sub/m-Q8_0.gguf")
    assert only(own_home) == Found(f"{QWEN}/sub/m-Q8_0.gguf", path, "Hugging Face")
    monkeypatch.setenv("HF_HOME", str(own_home / "hf"))
    assert survey(own_home / "own").models == []
    hub_file(own_home / "hf/hub", QWEN, "other.gguf")
    assert only(own_home).name == f"{QWEN}/other.gguf"


def test_an_image_encoder_in_a_snapshot_is_for_its_models(own_home: Path) -> None:
    cache = own_home / ".cache/huggingface/hub"
    eyes = hub_file(cache, QWEN, "mmproj-F16.gguf", seed=9)
    hub_file(cache, QWEN, "m.gguf", seed=1)
    hub_file(cache, QWEN, "Q8_0/big.gguf", seed=2)
    hub_file(cache, "other/Repo-GGUF", "m.gguf", seed=3)
    found = {m.name: m.vision_part for m in survey(own_home / "own").models}
    assert found == {
        f"{QWEN}/m.gguf": eyes, f"{QWEN}/Q8_0/big.gguf": eyes, "other/Repo-GGUF/m.gguf": None,
    }  # fmt: skip


def test_of_several_snapshots_the_one_of_main_counts(own_home: Path) -> None:
    cache = own_home / ".cache/huggingface/hub"
    hub_file(cache, QWEN, "m.gguf", "old", seed=1)
    new = hub_file(cache, QWEN, "m.gguf", "new", seed=2)
    assert only(own_home).path == new


@pytest.mark.parametrize("name", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"])
def test_places_follow_the_variables(own_home: Path, name: str) -> None:
    there = {"HOME": str(own_home), name: "~/x"}
    assert places.hub_cache(there) == own_home / ("x/hub" if name == "HF_HOME" else "x")
    assert places.llama_cpp_caches({"HOME": "/h", "LLAMA_CACHE": "/l"}) == [Path("/l")]
    assert places.ollama_models({"HOME": "/h", "OLLAMA_MODELS": "/o"}) == [Path("/o")]
    assert places.hub_cache({"HOME": "/h", "XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")


def test_llama_cpp_s_cache(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = own_home / ".cache" / "llama.cpp"
    path = model_file(cache / "ggml-org_tiny-GGUF_tiny-Q8_0.gguf", 1)
    eyes = model_file(cache / "ggml-org_tiny-GGUF_mmproj-tiny-Q8_0.gguf", 2, "clip")
    other = model_file(cache / "by-url.gguf", 3)
    manifest = cache / "manifest=ggml-org=tiny-GGUF=latest.json"
    manifest.write_text(json.dumps({"ggufFile": {"rfilename": "tiny-Q8_0.gguf"}}))
    (cache / "manifest=a=b=c.json").write_text("{")
    assert survey(own_home / "own").models == [
        Found("by-url", other, "llama.cpp"),
        Found("ggml-org/tiny-GGUF:latest", path, "llama.cpp", vision_part=eyes),
    ]
    monkeypatch.setenv("LLAMA_CACHE", str(own_home / "new"))
    hub_file(own_home / "new", QWEN, "m.gguf")  # its layout since it uses the hub's
    assert names(own_home) == {f"{QWEN}/m.gguf": "llama.cpp"}


def test_ollama(own_home: Path) -> None:
    folder = own_home / ".ollama" / "models"
    blob = ollama_model(folder, "registry.ollama.ai/library/gemma3/4b", 1, eyes=True)
    ollama_model(folder, "registry.ollama.ai/someone/mine/latest", 2)
    ollama_model(folder, "hf.co/unsloth/Qwen3-4B-GGUF/Q4_K_M", 3)
    assert set(names(own_home)) == {
        "gemma3:4b", "someone/mine:latest", "hf.co/unsloth/Qwen3-4B-GGUF:Q4_K_M",
    }  # fmt: skip
    (gemma,) = (m for m in survey(own_home / "own").models if m.name == "gemma3:4b")
    assert gemma.path == blob and gemma.vision_part == blob.with_name(f"sha256-{1001:064x}")
    assert resolve_model("gemma3:4b", own_home) == resolve_model("gemma3", own_home) == blob
    assert display_name(blob, own_home) == "gemma3:4b"


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"layers": [3]}', "cannot be read"),
        (
            '{"layers": [{"mediaType": "application/vnd.ollama.image.model", '
            '"digest": "sha256:../../etc/passwd"}]}',
            "is no digest",
        ),
        ('{"layers": []}', None),
    ],
)
def test_a_manifest_that_cannot_be_read(own_home: Path, manifest: str, said: str | None) -> None:
    path = own_home / ".ollama/models/manifests/registry.ollama.ai/library/m/latest"
    path.parent.mkdir(parents=True)
    path.write_text(manifest)
    found = survey(own_home / "own")
    assert found.models == []
    assert [said in sentence for sentence in found.problems] == ([True] if said else [])


def test_a_blob_that_is_gone_and_one_that_is_no_gguf_are_listed(own_home: Path) -> None:
    folder = own_home / ".ollama/models"
    ollama_model(folder, "registry.ollama.ai/library/gone/latest").unlink()
    path = folder / "manifests/registry.ollama.ai/library/tensors/latest"
    path.parent.mkdir()
    kind = "application/vnd.ollama.image.tensor; name=x; dtype=BF16"
    path.write_text(json.dumps({"layers": [{"mediaType": kind, "digest": f"sha256:{0:064x}"}]}))
    problems = {m.name: m.problem for m in survey(own_home / "own").models}
    assert problems["gone:latest"] == "its file is gone: ollama pull gone:latest"
    assert "single tensors" in problems["tensors:latest"]
    with pytest.raises(ModelNotFound, match=r"gone:latest .* cannot be opened: its file is gone"):
        resolve_model("gone:latest", own_home)


# --- parts, eyes, links ---


def test_parts_are_one_model_and_an_image_encoder_none(own_home: Path) -> None:
    folder = own_home / ".lmstudio/models/o/r"
    for number in (1, 2):
        parts = {"split.no": np.uint16(number - 1), "split.count": np.uint16(2)}
        model_file(folder / f"big-0000{number}-of-00002.gguf", number, **parts)
    eyes = model_file(folder / "mmproj-F16.gguf", 3, "clip")
    model = only(own_home)
    assert model.name == "o/r/big-00001-of-00002.gguf" and model.vision_part == eyes
    assert resolve_model("o/r/big", own_home) == model.path
    assert display_name(model.path, own_home) == "big"


def test_our_own_folder_goes_by_plain_names(own_home: Path) -> None:
    data = own_home / "data"
    model_file(models_dir(data) / "a.gguf", 1)
    model_file(models_dir(data) / "sub" / "b.gguf", 2)
    model_file(models_dir(data) / ".pull" / "half.gguf", 3)
    model_file(models_dir(data) / "mmproj.gguf", 4, "clip")
    found = survey(models_dir(data)).models
    assert {(m.name, m.source, m.vision_part) for m in found} == {
        ("a", "ds4tui", None), ("sub/b", "ds4tui", None),
    }  # fmt: skip
    assert resolve_model("sub/b", data) == models_dir(data) / "sub" / "b.gguf"


def test_links_are_followed_once_and_never_into_nothing(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "MAX_ENTRIES", 20)
    top = own_home / ".lmstudio/models"
    path = model_file(top / "o/r/m.gguf")
    (top / "o/r/dangling.gguf").symlink_to(own_home / "nowhere")
    (top / "o/r/round").symlink_to(top)
    (top / "o/r/self.gguf").symlink_to("self.gguf")
    (top / "again").symlink_to(top / "o")
    (own_home / "own").symlink_to(own_home / "gone")
    (top / "o/r/pipe.gguf").parent.mkdir(exist_ok=True)
    os.mkfifo(top / "o/r/pipe.gguf")
    found = survey(own_home / "own")
    assert [model.path.resolve() for model in found.models] == [path]
    assert found.problems == []


def test_a_file_that_two_programs_hold_is_one_model(own_home: Path) -> None:
    path = hub_file(own_home / ".cache/huggingface/hub", QWEN, "m.gguf")
    link = own_home / ".lmstudio/models/o/r/m.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(path)
    assert only(own_home).source == "Hugging Face"


def test_a_folder_that_cannot_be_read_is_told(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = own_home / ".lmstudio/models"
    model_file(top / "o/r/m.gguf")
    model_file(top / "secret/r/n.gguf")
    scandir = os.scandir

    def refusing(folder: Path) -> object:
        if str(folder).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)  # the tests may run as root
    found = survey(own_home / "own")
    assert [model.name for model in found.models] == ["o/r/m.gguf"]
    assert found.problems == [f"{top / 'secret'} cannot be read: Permission denied."]


@pytest.mark.parametrize("bound", ["entries", "seconds"])
def test_a_walk_without_end_is_cut_short(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    for number in range(30):
        model_file(own_home / f".lmstudio/models/o/r{number}/m.gguf", number)
    if bound == "entries":
        monkeypatch.setattr(discover, "MAX_ENTRIES", 40)
    else:
        monkeypatch.setattr(discover, "MAX_SECONDS", 0.0)
    found = survey(own_home / "own")
    assert len(found.models) < 30
    assert len(found.problems) == 1 and "cut short" in found.problems[0]


def test_folders_without_end_are_left(own_home: Path) -> None:
    model_file(own_home / ".lmstudio/models" / "/".join("abcdefgh") / "in.gguf", 1)
    model_file(own_home / ".lmstudio/models" / "/".join("abcdefghi") / "out.gguf", 2)
    assert list(names(own_home)) == ["a/b/c/d/e/f/g/h/in.gguf"]


# --- MLX's own format ---


def test_mlx_folders_are_named_with_the_gguf_to_get(own_home: Path) -> None:
    mlx_folder(own_home / ".lmstudio/models/mlx-community/Qwen3-8B-4bit")
    mlx_folder(own_home / ".cache/huggingface/hub/models--mlx-community--Odd-7B-8bit/snapshots/c")
    problems = {m.name: m.problem for m in survey(own_home / "own").models}
    assert problems == {
        "mlx-community/Qwen3-8B-4bit": "MLX format, not read; get GGUF: "
        "ds4tui pull Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf",
        "mlx-community/Odd-7B-8bit": "MLX format, not read; get GGUF: a repository named "
        "Odd-7B-GGUF (huggingface.co/models?search=Odd-7B-GGUF)",
    }
    with pytest.raises(ModelNotFound, match="MLX format, not read"):
        resolve_model("mlx-community/Odd-7B-8bit", own_home)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Foo-7B-4bit", "Foo-7B"),
        ("Foo-7B-Instruct-MLX-8bit", "Foo-7B-Instruct"),
        ("Foo-4bit-DWQ", "Foo"),
        ("Foo-bf16", "Foo"),
        ("Foo-mxfp4", "Foo"),
        ("gemma-3-4b-it-qat-4bit", "gemma-3-4b-it"),
    ],
)
def test_endings_of_mlx_names_are_left_out(name: str, base: str) -> None:
    assert f" {base}-GGUF" in mlx_format.advice(name) or base in mlx_format.advice(name)
    assert name not in mlx_format.advice(name)


def test_other_safetensors_are_no_mlx_models(own_home: Path) -> None:
    folder = mlx_folder(own_home / ".lmstudio/models/o/r")
    (folder / "config.json").write_text('{"quantization_config": {"bits": 4}}')
    assert survey(own_home / "own").models == []
    (folder / "config.json").write_text("[" * 100_000)
    assert survey(own_home / "own").models == []


# --- names ---


def test_a_model_goes_by_several_names(own_home: Path) -> None:
    path = hub_file(own_home / ".cache/huggingface/hub", QWEN, "Qwen3-4B-Q4_K_M.gguf")
    for name in (
        f"{QWEN}/Qwen3-4B-Q4_K_M.gguf",
        f"{QWEN}/Qwen3-4B-Q4_K_M",
        f"{QWEN.upper()}/QWEN3-4b-q4_k_m.GGUF",
        f"{QWEN}:q4_k_m",
        QWEN,
        "Qwen3-4B-Q4_K_M",
        "qwen3",
        "unsloth/Q",
    ):
        assert resolve_model(name, own_home) == path, name
    for name in ("qw", "wen3-4B", "Qwen3-4B-Q8_0", "z" * 300):
        with pytest.raises(ModelNotFound):
            resolve_model(name, own_home)


def test_an_ambiguous_name_lists_the_candidates(own_home: Path) -> None:
    cache = own_home / ".cache/huggingface/hub"
    first = hub_file(cache, QWEN, "Qwen3-4B-Q4_K_M.gguf", seed=1)
    second = hub_file(cache, QWEN, "Qwen3-4B-Q8_0.gguf", seed=2)
    with pytest.raises(ModelNotFound, match=f"'{QWEN}' may be 2 models") as caught:
        resolve_model(QWEN, own_home)
    assert str(first) in caught.value.message and str(second) in caught.value.message
    assert resolve_model(f"{QWEN}:Q8_0", own_home) == second
    third = model_file(own_home / f".lmstudio/models/{QWEN}/Qwen3-4B-Q8_0.gguf", 3)
    with pytest.raises(ModelNotFound, match="may be 2 models"):
        resolve_model(f"{QWEN}/Qwen3-4B-Q8_0.gguf", own_home)
    assert resolve_model(str(third), own_home) == third


def test_many_candidates_do_not_flood_the_message(own_home: Path) -> None:
    for number in range(20):
        model_file(own_home / f".lmstudio/models/o/r/same-{number}.gguf", number)
    with pytest.raises(ModelNotFound, match=r"20 models.*and 14 more"):
        resolve_model("same", own_home)


def test_a_name_of_the_hub_that_is_not_here_is_offered(own_home: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve_model("owner/repo:Q4_K_M", own_home)
    assert "ds4tui pull owner/repo:Q4_K_M" in caught.value.hint


def test_a_survey_of_many_files_is_quick(own_home: Path) -> None:
    for number in range(50):
        model_file(own_home / f".lmstudio/models/o/r{number}/m.gguf", number)
    began_s = time.perf_counter()
    assert len(survey(own_home / "own").models) == 50
    assert time.perf_counter() - began_s < 1
