"""Whether a text is in the middle of code, in Markdown, as far as it has come."""

_FENCE = "```"
_LONGEST_START = 16  # of a line, that says whether it is a fence


class CodeFences:
    """Fed with a text in pieces. A fence alone is no code yet: models put calls into fences, too,
    but then nothing stands between."""

    def __init__(self) -> None:
        self._is_open = False
        self._has_code = False
        self._start = ""  # of the line, without what it is indented by
        self._ticks = 0  # that the text ends with

    def feed(self, text: str) -> None:
        if not text:
            return
        first, *others = text.split("\n")
        self._more(first)
        for line in others:
            self._end_line()
            self._more(line)
        ticks = len(text) - len(text.rstrip("`"))
        self._ticks = ticks + (self._ticks if ticks == len(text) else 0)

    @property
    def is_code(self) -> bool:
        """Whether what comes next is code: in a fence behind other code, or behind a backtick."""
        if self._ticks in (1, 2):
            return True
        return self._is_open and (self._has_code or bool(self._start))

    def _more(self, text: str) -> None:
        if len(self._start) < _LONGEST_START:
            self._start = (self._start + text).lstrip(" \t\r")[:_LONGEST_START]

    def _end_line(self) -> None:
        if self._start.startswith(_FENCE):
            self._is_open, self._has_code = not self._is_open, False
        elif self._is_open and self._start:
            self._has_code = True
        self._start = ""
