"""Timelines with images, written down shortly."""

from ds4tui.cache.timeline import ImageSpan, Timeline


def span(start: int, rows: int = 3, name: int = 1) -> ImageSpan:
    return ImageSpan(start, rows, bytes([name]) * 16, (7,) * rows)


def rows_of(image: ImageSpan) -> list[int]:
    return [-(100 * image.fingerprint[0] + row + 1) for row in range(image.rows)]


def with_images(*parts: int | ImageSpan) -> Timeline:
    """A timeline of text ids and images; the spans' starts are filled in here."""
    ids: list[int] = []
    spans: list[ImageSpan] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            continue
        spans.append(ImageSpan(len(ids), part.rows, part.fingerprint, part.token_ids))
        ids += rows_of(part)
    return Timeline.of(ids, tuple(spans))
