"""What there is to type behind `ds4tui launch`. Imports nothing heavy: the help shows it."""

from collections.abc import Callable
from typing import Any

from ds4tui.arguments import Parser

AGENTS = ("codex", "opencode", "claude")


def add_arguments(parser: Parser, settings_arguments: Callable[[Any], None]) -> None:
    parser.add_argument("agent", metavar="AGENT", choices=AGENTS, help=", ".join(AGENTS))
    parser.add_argument(
        "--write",
        action="store_true",
        help="write them: what changes is told first, and the file as it was is kept",
    )
    settings_arguments(parser)
