"""@paths in questions: what they name, and what of the sentence is theirs."""

from pathlib import Path

import pytest

from ds4tui.pictures.mentions import may_mention, next_mention


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.jpg", "b.webp", "two words.png", "a.jpg-old.png", "notes.txt", "it's.png"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def taken(text: str) -> str:
    """`text` with <NAME> for each picture that is mentioned, <?> for those that are not there."""
    parts, at = [], 0
    while mention := next_mention(text, at):
        shown = mention.path.name if mention.path is not None else "?"
        parts += [text[at : mention.start], f"<{shown}>"]
        at = mention.end
    return "".join([*parts, text[at:]])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("@a.jpg", "<a.jpg>"),
        ("see @./a.jpg.", "see <a.jpg>."),
        ("@~/a.jpg", "<a.jpg>"),
        ("(@a.jpg)", "(<a.jpg>)"),
        ("@a.jpg's sky", "<a.jpg>'s sky"),
        ("@a.jpg,@b.webp", "<a.jpg>,<b.webp>"),
        ("@a.jpg/@b.webp", "<a.jpg>/@b.webp"),
        ("@a.jpg… @a.jpg—what", "<a.jpg>… <a.jpg>—what"),
        ("「@a.jpg」 “@a.jpg” '@a.jpg'", "「<a.jpg>」 “<a.jpg>” '<a.jpg>'"),
        ('"@a.jpg"?', '"<a.jpg>"?'),
        ("@'two words.png'? @\"two words.png\"!", "<two words.png>? <two words.png>!"),
        ("look @two\\ words.png, please", "look <two words.png>, please"),
        ("@\"it's.png\" and @it's.png", "<it's.png> and <it's.png>"),
        ("@a.jpg-old.png @a.jpg-like", "<a.jpg-old.png> <a.jpg>-like"),
        ("@A.JPG.", "<?>."),
        ("Compare @a.jpg, @nobody.png!", "Compare <a.jpg>, <?>!"),
        ("(@nosuch.png's @x.png,y.png)", "(<?>'s <?>,y.png)"),
    ],
)
def test_names_are_taken_out_of_what_stands_around_them(folder: Path, text: str, told: str) -> None:
    assert may_mention(text) and taken(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "me@a.jpg", "a.b@a.jpg", "icon@2x.png", "src/@a.jpg", "@notes.txt", "@a.jpg.txt",
        "@a.jpg/b", "@noext", "@a.jpgx", "@ a.jpg", "@", "[@a.jpg 10x10 · 5 tokens]",
        "@'s and it's",
    ],
)  # fmt: skip
def test_other_words_are_words(folder: Path, text: str) -> None:
    assert not may_mention(text) and taken(text) == text
