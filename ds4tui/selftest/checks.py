"""Checks as values: what is run, and what came of it."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Check:
    """`run` returns a word about what it did; it raises, Wrong or what else comes, if it fails."""

    name: str
    run: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    passed: bool
    detail: str
    seconds: float


class Wrong(Exception):
    """A result is not what it must be; the text says which."""


def expect(is_right: bool, wrong: str) -> None:
    if not is_right:
        raise Wrong(wrong)


def outcomes(checks: Iterable[Check]) -> Iterator[Outcome]:
    for check in checks:
        began_s = time.perf_counter()
        passed, detail = _ran(check)
        yield Outcome(check.name, passed, detail, time.perf_counter() - began_s)


def _ran(check: Check) -> tuple[bool, str]:
    try:
        return True, check.run()
    except Wrong as exc:
        log.error("selftest: %s: %s", check.name, exc)
        return False, str(exc)
    except Exception as exc:  # the root of a check: whatever it is, the others are to run
        log.exception("selftest: %s failed", check.name)
        return False, f"{type(exc).__name__}: {exc}"
