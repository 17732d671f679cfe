"""What can be copied of a conversation, and that it is what was written."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.messages import Message
from ds4tui.chat.store import StoredMessage
from ds4tui.tui.copying import Copyable, code_blocks, copyables
from tests.scale import scaled


def stored(id_: int, message: Message) -> StoredMessage:
    return StoredMessage(id_, None, message, "complete", None, 0.0)


def test_code_comes_without_fences_indents_of_lists_and_quotes() -> None:
    text = (
        "One:\n\n1. first\n\n   ```python title=x\n   def f():\n       return 1\n   ```\n\n"
        "> ~~~\n> a `b`\n> ~~~\n\n    indented\n\n````md\n```\ninner\n```\n````\n"
    )
    assert code_blocks(text) == [
        ("python", "def f():\n    return 1\n"),
        ("", "a `b`\n"),
        ("", "indented\n"),
        ("md", "```\ninner\n```\n"),
    ]


def test_the_newest_message_comes_first_and_answers_before_their_code() -> None:
    path = [
        stored(1, Message("user", "show me")),
        stored(2, Message("assistant", "```\nx\n```")),
        stored(3, Message("tool", "42")),
        stored(4, Message("assistant", " \n")),
    ]
    assert copyables(path) == [
        Copyable("The result", "42"),
        Copyable("The answer", "```\nx\n```"),
        Copyable("The code", "x\n"),
        Copyable("The question", "show me"),
    ]


# What an answer may hold, but no carriage returns (Markdown makes line ends of them) and NUL.
_CODE = st.text(st.characters(exclude_characters="\r\x00", exclude_categories=("Cs",)), max_size=80)


@settings(max_examples=scaled(100), deadline=None)
@given(_CODE)
def test_any_code_between_fences_is_copied_to_the_character(code: str) -> None:
    fence = "`" * (3 + max(len(run) for run in code.split("\n")))
    assert code_blocks(f"{fence}txt\n{code}\n{fence}\n") == [("txt", f"{code}\n")]
