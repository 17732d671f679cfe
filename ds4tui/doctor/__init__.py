"""`ds4tui doctor`: what this machine and installation can do, and what to do about what is wrong.

Secrets are not shown. Nothing is changed but caches: kernels are compiled if they were not yet,
what headers say is kept.
"""

import json
import logging
from collections.abc import Iterator
from typing import TextIO

from ds4tui import __version__
from ds4tui.config import Settings
from ds4tui.doctor import machine, models, terminal
from ds4tui.doctor.compiler import compiler
from ds4tui.doctor.findings import (
    Check,
    Finding,
    Section,
    is_usable,
    section_lines,
    sections_json,
    verdict,
)
from ds4tui.doctor.private import shortened
from ds4tui.errors import Ds4Error

log = logging.getLogger(__name__)


def doctor(settings: Settings, out: TextIO, as_json: bool = False) -> int:
    """Print the report; 1 if something is wrong that stops use, else 0."""
    found = []
    for section in sections(settings):
        found.append(section)
        if not as_json:
            print(shortened("\n".join(section_lines(section))), file=out, flush=True)
    usable = is_usable(found)
    if as_json:
        whole = {"ds4tui": __version__, "usable": usable, "sections": sections_json(found)}
        print(json.dumps(whole, indent=2), file=out)
    else:
        print(verdict(found), file=out)
    return 0 if usable else 1


def sections(settings: Settings) -> Iterator[Section]:
    yield from machine_sections()
    yield examined("folders", lambda: machine.folders(settings))
    yield examined("terminal", lambda: terminal.terminal())
    yield examined("models", lambda: models.models(settings))


def machine_sections() -> Iterator[Section]:
    """What has nothing to do with anybody's files."""
    yield examined("ds4tui", machine.versions)
    yield examined("device", machine.device)
    yield examined("memory", machine.memory)
    yield examined("MLX", machine.mlx)
    yield examined("BLAS", machine.blas)
    # Before the twins, whose checks compile the kernels.
    yield examined("C++ compiler", compiler)
    yield examined("twins", machine.twins)


def examined(title: str, check: Check) -> Section:
    """The section that `check` makes; a check that fails says so, and the others are made."""
    try:
        return Section(title, tuple(check()))
    except Ds4Error as exc:
        return Section(title, (Finding("warn", exc.message, exc.hint or ""),))
    except Exception as exc:  # the root of a check: this is the command for odd machines
        log.exception("the section %s failed", title)
        return Section(title, (Finding("warn", f"this could not be found out: {exc!r}"),))
