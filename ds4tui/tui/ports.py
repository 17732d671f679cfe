"""What the app is handed: the world outside it, as types. Nothing here is imported at run time
by a caller that only wants to start the app."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ds4tui.assistant import Assistant
from ds4tui.library.progress import PullProgress


class ServerLike(Protocol):
    """A running HTTP server."""

    @property
    def url(self) -> str: ...
    @property
    def warning(self) -> str:
        """What whoever started it should be told; empty if nothing."""

    def stop(self, timeout_s: float = 5.0) -> object: ...


# Blocking calls; each raises a Ds4Error that a person can read.
OpenModel = Callable[[str, Callable[[str], None]], Assistant]
# Whether a name can be opened, as far as the file's header tells; returns nothing of use.
CheckModel = Callable[[str], object]
StartServer = Callable[[Assistant], ServerLike]
# What the progress callback raises comes out of the call again: that is how a pull is cancelled.
PullModel = Callable[[str, Callable[[PullProgress], None]], Path]
SaveTheme = Callable[[str], None]
