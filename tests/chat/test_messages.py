"""Messages with images, as values."""

from hashlib import blake2b

from ds4tui.chat.messages import Image, Message


def test_an_image_is_told_by_its_content() -> None:
    image = Image(b"one", at=3, name="shot.png")
    assert image.digest == blake2b(b"one", digest_size=16).digest()
    assert image.digest == Image(b"one").digest != Image(b"two").digest


def test_a_moved_image_is_the_same_at_another_place() -> None:
    image = Image(b"one", at=3, name="shot.png")
    digest = image.digest
    moved = image.moved(5)
    assert moved == Image(b"one", 5, "shot.png")
    assert moved.digest is digest  # not hashed again
    assert image.moved(3) is image


def test_the_file_of_an_image_is_in_no_log_line() -> None:
    message = Message("user", "see", images=(Image(b"secret bytes", 3),))
    assert "secret" not in repr(message)


def test_a_message_gives_its_texts_and_images_in_order() -> None:
    one, two, three = Image(b"1"), Image(b"2"), Image(b"3", 2)
    message = Message("user", "abc", images=(one, two, three))
    assert list(message.elements()) == [one, two, "ab", three, "c"]
    assert list(Message("user", "abc").elements()) == ["abc"]
    assert list(Message("user", "", images=(one,)).elements()) == [one]


def test_images_move_with_their_text() -> None:
    message = Message("user", "ab", images=(Image(b"1", 1),)).within("<<", ">")
    assert (message.text, message.images) == ("<<ab>", (Image(b"1", 3),))
    joined = message.followed_by(Message("user", "c", images=(Image(b"2", 1),)), "\n")
    assert (joined.text, joined.images) == ("<<ab>\nc", (Image(b"1", 3), Image(b"2", 7)))
