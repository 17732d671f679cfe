"""A picture is recognised by what it looks like, and decoded once."""

from hashlib import blake2b
from pathlib import Path

import pytest
from PIL import Image

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vision import pictures, recognition
from ds4tui.engine.vision.recognition import Recogniser
from ds4tui.errors import GGUFError, UsageError
from tests.engine.vision.asking import ids_of
from tests.engine.vision.changed import with_keys
from tests.engine.vision.pictures import CONFIGS, SIZES, encoded, picture
from tests.golden.files import projector_path

SHOT = picture(120, 90)


def recogniser(path: Path | None = None) -> Recogniser:
    with GGUFFile.open(path or projector_path("idefics3")) as file:
        return Recogniser(file, ids_of)


@pytest.mark.parametrize(
    "data",
    [
        encoded(SHOT, "PNG", compress_level=1),
        encoded(SHOT, "BMP"),
        encoded(SHOT, "WEBP", lossless=True),
        encoded(SHOT.convert("RGBA")),
    ],
)
def test_a_picture_encoded_again_without_loss_is_the_same(data: bytes) -> None:
    recognise = recogniser()
    assert recognise(data).fingerprint == recognise(encoded(SHOT)).fingerprint


def test_other_pixels_settings_or_weights_are_another_picture(tmp_path: Path) -> None:
    seen = {recogniser()(encoded(SHOT)).fingerprint}
    changed = SHOT.copy()
    changed.paste((255, 0, 255), (50, 30, 58, 38))
    seen.add(recogniser()(encoded(changed)).fingerprint)
    for i, keys in enumerate(({"clip.vision.preproc_image_size": 64}, {"general.name": "other"})):
        path = with_keys(projector_path("idefics3"), tmp_path / f"{i}.gguf", keys)
        seen.add(recogniser(path)(encoded(SHOT)).fingerprint)
    assert len(seen) == 4


def test_an_unchanged_history_decodes_no_picture_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    right = pictures.opened

    def counted(data: bytes, name: str) -> Image.Image:
        decoded.append(name)
        return right(data, name)

    monkeypatch.setattr(pictures, "opened", counted)
    recognise, files = recogniser(), [encoded(picture(40 + i, 30)) for i in range(20)]
    first = [recognise(data, f"{i}.png").fingerprint for i, data in enumerate(files)]
    assert len(decoded) == len(set(first)) == 20
    again = [recognise(data, "again") for data in files]
    assert [p.fingerprint for p in again] == first and len(decoded) == 20
    assert again[0].load().shape == again[0].shape
    assert len(decoded) == 20  # just prepared
    assert again[0].load().shape == again[0].shape and decoded[20:] == ["again"]


def test_what_is_prepared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    recognise = recogniser()
    first = recognise(encoded(picture(40, 30)))
    monkeypatch.setattr(recognition, "PREPARED_BYTES", first.load().pixels.nbytes)
    for width in (41, 42):
        recognise(encoded(picture(width, 30)))
    assert len(recognise._prepared) == 1


@pytest.mark.parametrize("name", CONFIGS)
def test_the_rows_of_a_size_are_those_of_the_picture(name: str) -> None:
    recognise = recogniser()
    recognise.config = CONFIGS[name]
    for size in [*SIZES, (1, 90), (90, 1), (3000, 20)]:
        assert recognise.tokens_of(size) == recognise(encoded(picture(*size))).block.rows


def test_a_size_that_the_model_does_not_take_is_told() -> None:
    recognise = recogniser()
    recognise.config = CONFIGS["qwen"]
    with pytest.raises(UsageError, match="too long"):
        recognise.tokens_of((1000, 2))


def test_a_known_digest_stands_for_the_bytes() -> None:
    recognise, data = recogniser(), encoded(SHOT)
    digest = blake2b(data, digest_size=16).digest()
    assert recognise(data, digest=digest).fingerprint == recognise(data).fingerprint
    assert recognise.decoded == 1


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "KNOWN_MAX", 3)
    recognise = recogniser()
    for width in range(20, 30):
        recognise(encoded(picture(width, 20)))
    assert len(recognise._known) == 3


@pytest.mark.parametrize("name", ["idefics3", "gemma3v", "qwen2vl", "qwen25vl", "qwen3vl"])
def test_an_mmproj_of_another_model_is_refused(name: str, tmp_path: Path) -> None:
    """Unless it names its tokens itself."""
    path, own = projector_path(name), {"ds4tui.image.opening_ids": [5]}
    with GGUFFile.open(path) as file, pytest.raises(GGUFError, match="vocabulary has no <"):
        Recogniser(file, lambda text: list(text.encode()))
    with GGUFFile.open(with_keys(path, tmp_path / "own.gguf", own)) as file:
        block = Recogniser(file, lambda text: list(text.encode()))(encoded(SHOT)).block
    assert block.token_ids == (5, *[-1] * (block.rows - 1))
    assert block.is_vector.tolist() == [False, *[True] * (block.rows - 1)]


def test_a_file_that_is_no_picture_is_named() -> None:
    with pytest.raises(UsageError, match=r"notes\.txt"):
        recogniser()(b"hello there", "notes.txt")
