"""What there is to type behind `ds4tui cache`. Imports nothing heavy: the help shows it."""

import argparse
from collections.abc import Callable
from typing import Any

from ds4tui.arguments import Parser

_TEXTS = {
    "ls": "list the conversations that are stored",
    "show": "tell all about one of them",
    "verify": "read everything, tell what is damaged, and remove that",
    "prune": "make room: what is worth least goes first, what is pinned stays",
    "pin": "keep a conversation whatever the budget needs",
    "unpin": "take that back",
    "clear": "remove all that is not pinned",
}


def add_arguments(parser: Parser, settings_arguments: Callable[[Any], None]) -> None:
    _add_json(parser)  # without a command it lists
    settings_arguments(parser)
    commands = parser.add_subparsers(title="what to do", metavar="WHAT", dest="what")
    for what, text in _TEXTS.items():
        sub = commands.add_parser(
            what,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        if what in ("show", "pin", "unpin"):
            sub.add_argument("name", metavar="ID", help="as `ds4tui cache ls` shows it")
        if what == "prune":
            sub.add_argument(
                "--to", metavar="SIZE", required=True, help="what may stay in all, as 5GB"
            )
        if what == "clear":
            sub.add_argument("--pinned", action="store_true", help="the pinned conversations, too")
        _add_json(sub)
        settings_arguments(sub)


def _add_json(parser: Any) -> None:
    parser.add_argument("--json", dest="as_json", action="store_true", help="as JSON")
