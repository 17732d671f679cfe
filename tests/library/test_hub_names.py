"""What people write for a model of the hub, and which files it means."""

import pytest

from ds4tui.errors import DownloadError
from ds4tui.library.hub_names import (
    HubModel,
    HubName,
    choose,
    looks_like_hub_name,
    models_of,
    quant_of,
)


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("Qwen3.5-4B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("UD-IQ1_S/GLM-5.3-UD-IQ1_S-00001-of-00006.gguf", "UD-IQ1_S"),
        ("model.Q4_1.gguf", "Q4_1"),
        ("Q6_K/model-00001-of-00002.gguf", "Q6_K"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("gemma-3-27b-it-qat-Q4_0.gguf", "Q4_0"),
        ("mmproj-F16.gguf", "F16"),
        ("model-bf16.gguf", "BF16"),
        ("Q4-lover-v2.gguf", "Q4"),
        ("model.gguf", ""),
    ],
)
def test_the_quant_is_read_off_the_name(file: str, quant: str) -> None:
    assert quant_of(file) == quant


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a/b", HubName("a/b")),
        ("a/b:Q4_K_M", HubName("a/b", quant="Q4_K_M")),
        ("a/b/c/d.gguf", HubName("a/b", file="c/d.gguf")),
        (" https://hf.co/a/b/ ", HubName("a/b")),
        ("https://huggingface.co/a/b/resolve/main/c/d.gguf", HubName("a/b", file="c/d.gguf")),
    ],
)
def test_names_are_taken_apart_and_put_together(text: str, name: HubName) -> None:
    assert HubName.parse(text) == name
    assert HubName.parse(str(name)) == name


@pytest.mark.parametrize("text", ["a/b:c:d", "https://x", "a", "a//b", "a/b/../../c.gguf", "a b/c"])
def test_a_wrong_name_is_wrong_usage(text: str) -> None:
    with pytest.raises(DownloadError) as caught:
        HubName.parse(text)
    assert caught.value.exit_code == 2 and "owner/repo" in (caught.value.hint or "")


def test_a_path_is_no_hub_name() -> None:
    assert looks_like_hub_name("a/b")
    for text in ("smollm2", "./a/b", "../b", "/a/b", "~/b"):
        assert not looks_like_hub_name(text)


def test_models_are_single_files_and_whole_sets_of_parts() -> None:
    names = ["b-Q8_0.gguf", "mmproj-F16.gguf", "README.md", "x-00001-of-00002.gguf"]
    names += ["a-Q2_K-00002-of-00002.gguf", "a-Q2_K-00001-of-00002.gguf"]
    assert models_of(names) == [
        HubModel(("a-Q2_K-00001-of-00002.gguf", "a-Q2_K-00002-of-00002.gguf"), "Q2_K"),
        HubModel(("b-Q8_0.gguf",), "Q8_0"),
    ]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        (["m-Q8_0.gguf", "m-UD-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf"], "m-UD-Q4_K_M.gguf"),
        (["m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf"], "m-UD-Q4_K_XL.gguf"),
        (["m-Q2_K.gguf"], "m-Q2_K.gguf"),
    ],
)
def test_without_a_quant_the_middle_one_is_taken(names: list[str], chosen: str) -> None:
    assert choose(HubName("a/b"), names).files == (chosen,)


def test_a_quant_may_leave_its_publisher_s_mark_out() -> None:
    names = ["m-UD-Q2_K_XL.gguf", "m-Q8_0.gguf"]
    assert choose(HubName("a/b", quant="q2_k_xl"), names).files == (names[0],)


def test_two_models_of_one_quant_must_be_told_apart() -> None:
    names = ["x-Q4_K_M.gguf", "y-Q4_K_M.gguf"]
    with pytest.raises(DownloadError, match=r"several models as Q4_K_M: x-.*, y-"):
        choose(HubName("a/b", quant="Q4_K_M"), names)
    with pytest.raises(DownloadError, match="several models") as caught:
        choose(HubName("a/b"), names)
    assert caught.value.hint == "Name one: ds4tui pull a/b/y-Q4_K_M.gguf"
