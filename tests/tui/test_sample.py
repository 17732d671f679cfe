"""The sample screenshot: an empty chat offers it where the model sees, and a command brings it."""

from pathlib import Path

import pytest

from ds4tui.library.screens import SAMPLE, SAMPLE_QUESTION
from tests.pictures.samples import png
from tests.tui.harness import running
from tests.tui.pictures import REFUSAL, blind, seeing

HINT = "Try /image sample: a screenshot, and a question about it"
LABEL = "[sample.png 360x200 · 72 tokens] "


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_new_user_sees_it_work_with_two_commands(size: tuple[int, int]) -> None:
    assistant = seeing("Save, Discard")
    async with running(assistant, size=size) as on:
        assert HINT in on.screen_text()
        await on.type("/image sample")
        await on.press("enter")
        await on.until(lambda: on.prompt.text == LABEL + SAMPLE_QUESTION, on.prompt.text)
        assert "Which buttons" in on.screen_text()
        await on.press("enter")
        await on.until(lambda: on.answers == ["Save, Discard"])
        await on.answered()
        assert HINT not in on.screen_text()
        (question,) = assistant.asked[0]  # type: ignore[attr-defined]
        assert question.text == SAMPLE_QUESTION
        assert [image.data for image in question.images] == [SAMPLE.read_bytes()]


async def test_a_model_that_sees_nothing_is_offered_none_and_says_so() -> None:
    async with running(blind()) as on:
        assert "/image" not in on.screen_text() and "never computes" in on.screen_text()
        await on.type("/image sample")
        await on.press("enter")
        await on.until(lambda: REFUSAL in on.toasts)


async def test_it_is_offered_as_soon_as_a_model_that_sees_is_opened() -> None:
    models = {"blind": blind, "seeing": seeing}

    def open_model(name: str, progress: object) -> object:
        return models.get(name, blind)()

    async with running(open_model=open_model) as on:
        assert HINT not in on.screen_text()
        await on.type("/model seeing")
        await on.press("enter")
        await on.until(lambda: HINT in on.screen_text())


async def test_what_stands_in_the_prompt_is_the_question_and_a_file_of_that_name_is_it(
    own_folder: Path,
) -> None:
    async with running(seeing()) as on:
        on.prompt.put("What is it? ")
        await on.chat.add_pictures("sample")
        assert on.prompt.text == f"What is it? {LABEL}"
        on.prompt.clear()
        (own_folder / "sample").write_bytes(png((100, 50)))
        await on.chat.add_pictures("sample")
        assert on.prompt.text == "[sample 100x50 · 5 tokens] "
