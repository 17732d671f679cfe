"""Signals in the moments in which there is nothing to end in order yet."""

import signal
import subprocess
import sys

import pytest

from ds4tui.interrupts import ending_on_interrupt

WHILE_IMPORTING = """
import os, signal, sys

class Meddler:
    def find_spec(self, name, *rest):
        if name == "{module}":
            os.kill(os.getpid(), {number})
            os.getpid()  # a handler runs between two steps of Python
            print("went on")

sys.meta_path.insert(0, Meddler())
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
sys.argv[1:] = {arguments}
from ds4tui.__main__ import main
raise SystemExit(main())
"""

WHILE_LOADING = """
import os, signal, time
from ds4tui.config import Settings
from ds4tui.oneshot import one_shot

def open_model(*given):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
    except BaseException:  # what an extension module does to it
        os._exit(3)

signal.signal(signal.SIGINT, signal.default_int_handler)
one_shot(Settings(), "hi", False, open_model)
"""


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("number", "arguments", "module", "code"),
    [
        (signal.SIGINT, ["-p", "hi"], "ds4tui.cli", 130),
        (signal.SIGINT, ["-p", "hi"], "ds4tui.opening", 130),
        (signal.SIGINT, ["serve"], "ds4tui.config", 130),
        (signal.SIGINT, ["serve"], "ds4tui.serve", 130),
        (signal.SIGTERM, ["serve"], "ds4tui.cli", 0),
        (signal.SIGTERM, ["serve"], "ds4tui.opening", 0),
    ],
)
def test_a_signal_while_the_program_is_imported(
    number: signal.Signals, arguments: list[str], module: str, code: int
) -> None:
    ran = run(WHILE_IMPORTING.format(
        number=int(number), arguments=arguments, module=module, before=""
    ))  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")


def test_an_interrupt_that_the_shell_ignores_stays_ignored() -> None:
    ran = run(WHILE_IMPORTING.format(
        number=int(signal.SIGINT), arguments=["--print-config"], module="ds4tui.cli",
        before="signal.signal(signal.SIGINT, signal.SIG_IGN)",
    ))  # fmt: skip
    assert ran.returncode == 0 and ran.stdout.startswith("went on")


def test_an_interrupt_while_a_model_is_loaded_ends_the_process() -> None:
    ran = run(WHILE_LOADING)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_afterwards_interrupts_are_what_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), ending_on_interrupt():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before
