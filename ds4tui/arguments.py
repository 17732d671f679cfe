"""argparse with errors in one clear line."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from ds4tui.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class Parser(argparse.ArgumentParser):
    """Raises UsageError for what it cannot take. `given` is the whole command line."""

    given: Sequence[str] = ()

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """Raises OSError, which argparse's own swallows."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        raise UsageError(_sentence(self, message), f"{self.prog} --help shows what there is.")


def refuse_unknown(parser: Parser, unknown: Sequence[str]) -> NoReturn:
    """Raise UsageError for `unknown`, words that `parser` had no place for."""
    first = unknown[0]
    parser.error(_stray(parser, first) if first.startswith("-") else f"{first!r} is one too many.")


def _sentence(parser: Parser, message: str) -> str:
    """argparse's message in our words; one that is not known here stays as it is."""
    if chosen := re.match(r"argument [^-:][^:]*: invalid choice: (.+?) \(choose from", message):
        stray = next(_strangers(parser), "")
        if stray:
            return _stray(parser, stray)
        return f"There is no command {chosen[1]} of {parser.prog}."
    if argument := re.match(r"argument ([^:]+): (.*)", message, re.DOTALL):
        name, what = argument.groups()
        if what.startswith("expected"):
            return f"{name} needs a value."
        if what.startswith("ignored explicit argument"):
            return f"{name} takes no value."
        return f"{name}: {what}."
    return message if message.endswith(".") else f"{message}."


def _strangers(parser: Parser) -> Iterator[str]:
    """Options on the command line that `parser` does not know."""
    for word in parser.given:
        if word == "--":
            return
        name = word.partition("=")[0]
        if name.startswith("--") and name not in _options(parser):
            yield name


def _stray(parser: Parser, word: str) -> str:
    name = word.partition("=")[0]
    owners = [each.prog for each in _commands(parser) if name in _options(each)]
    if owners:
        return f"{name} goes with {' and '.join(owners)} only."
    close = get_close_matches(name, _options(parser), n=1, cutoff=0.7)
    return f"There is no option {name}" + (f" (did you mean {close[0]}?)." if close else ".")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()
