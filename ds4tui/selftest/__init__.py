"""`ds4tui selftest`: a report that can be pasted where others read it.

What `doctor` finds, without names of models, folders and people; then checks that are really run,
on a tiny model that is written to a temporary folder and removed. No network, no terminal and no
model are needed. Beyond the log and the caches that every command keeps, nothing is left behind.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from ds4tui import __version__
from ds4tui.config import Settings
from ds4tui.doctor import examined, machine_sections, terminal
from ds4tui.doctor.findings import Section, one_line, section_lines, sections_json
from ds4tui.doctor.private import anonymous
from ds4tui.errors import Ds4Error, UsageError
from ds4tui.interrupts import ending_on_interrupt
from ds4tui.selftest.checks import Check, Outcome, Wrong, outcomes
from ds4tui.selftest.models import models_in_short

TITLE = f"ds4tui {__version__} selftest"


def selftest(settings: Settings, out: TextIO, as_json: bool = False) -> int:
    """Print the report; 1 if a check failed, else 0."""

    def show(text: str) -> None:
        if not as_json:
            print(anonymous(text), file=out, flush=True)

    show(f"{TITLE}\n")
    sections = []
    with ending_on_interrupt():  # extension modules are imported
        for section in _sections(settings):
            sections.append(section)
            show("\n".join(section_lines(section)))
    show("checks")
    done = []
    # An interrupt from here on removes the folder.
    with _temporary_folder() as folder:
        for outcome in outcomes(all_checks(Path(folder))):
            done.append(outcome)
            show(_line(outcome))
    failed = sum(not outcome.passed for outcome in done)
    show(f"\n{_summary(done, failed)}")
    if as_json:
        print(_json(sections, done), file=out)
    return 1 if failed else 0


def _sections(settings: Settings) -> Iterator[Section]:
    yield from machine_sections()
    yield examined("terminal", lambda: terminal.terminal())
    yield examined("models", lambda: models_in_short(settings))


def all_checks(folder: Path) -> Iterator[Check]:
    """All, in the order in which one builds on the other."""
    try:
        from ds4tui.selftest.engine_checks import TinyModel, engine_checks, twin_checks
        from ds4tui.selftest.server_checks import server_checks
        from ds4tui.selftest.store_checks import store_checks

        twins = list(twin_checks())
    except ImportError as exc:
        yield Check("packages are there", partial(_missing, exc))
        return
    except Ds4Error as exc:  # a setting that is wrong
        yield Check("kernels are chosen", partial(_refused, exc))
        return
    tiny = TinyModel(folder)
    yield from chain(twins, engine_checks(tiny), store_checks(folder), server_checks(tiny))


def _missing(exc: ImportError) -> str:
    raise Wrong(f"{exc}; no check can be run without it") from exc


def _refused(exc: Ds4Error) -> str:
    raise Wrong(f"{exc.message} {exc.hint or ''}".strip()) from exc


def _temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    try:
        return tempfile.TemporaryDirectory(prefix="ds4tui-", ignore_cleanup_errors=True)
    except FileNotFoundError as exc:
        raise UsageError(
            "No folder for temporary files can be written to.", "Set TMPDIR to one that can."
        ) from exc


def _line(outcome: Outcome) -> str:
    verdict = "ok" if outcome.passed else f"FAILED: {one_line(outcome.detail)}"
    detail = f" ({one_line(outcome.detail)})" if outcome.passed and outcome.detail else ""
    return f"  {outcome.seconds:6.2f} s  {outcome.name}: {verdict}{detail}"


def _summary(done: list[Outcome], failed: int) -> str:
    seconds = sum(outcome.seconds for outcome in done)
    if failed:
        return f"{failed} of {len(done)} checks FAILED, in {seconds:.1f} s"
    return f"all {len(done)} checks are ok, in {seconds:.1f} s"


def _json(sections: list[Section], done: list[Outcome]) -> str:
    whole = {
        "ds4tui": __version__,
        "passed": all(outcome.passed for outcome in done),
        "sections": sections_json(sections),
        "checks": [asdict(replace(o, seconds=round(o.seconds, 3))) for o in done],
    }
    return json.dumps(_anonymous(whole), indent=2)


def _anonymous(value: Any) -> Any:
    if isinstance(value, str):
        return anonymous(value)
    if isinstance(value, dict):
        return {name: _anonymous(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_anonymous(each) for each in value]
    return value
