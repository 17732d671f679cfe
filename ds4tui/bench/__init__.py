"""`ds4tui bench`: prefill and decode rates at growing lengths, alone or beside llama.cpp.

One text is walked to growing frontiers. At each one the new tokens are evaluated (prefill) and a
short greedy reply is decoded, which is dropped again before the next one. With a peer, both walk
the same token ids of the same file with the same number of threads, taking turns, and who goes
first changes each time. Nothing heavy is imported before `main` runs.
"""

import argparse
import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ds4tui.errors import UsageError

if TYPE_CHECKING:
    from ds4tui.bench.walk import BenchResult
    from ds4tui.config import Settings

FRONTIERS = (128, 512, 1024, 2048)
DECODE_TOKENS = 48
PEERS = ("llama.cpp",)
STDOUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ds4tui bench`. Those that are settings leave no attribute if not given."""
    unset = argparse.SUPPRESS
    parser.add_argument("-m", "--model", metavar="NAME", default=unset,
                        help="a known name, a file of the models folder, or a path")  # fmt: skip
    parser.add_argument("--data-dir", dest="data_dir", metavar="DIR", default=unset,
                        help="the folder of models")  # fmt: skip
    parser.add_argument("--against", choices=PEERS, default=None,
                        help="measure this program too, in the same run")  # fmt: skip
    parser.add_argument("--frontiers", metavar="N,N,..", type=_frontiers, default=FRONTIERS,
                        help=f"lengths to walk to ({','.join(map(str, FRONTIERS))})")  # fmt: skip
    parser.add_argument("--decode-tokens", metavar="N", type=_at_least_two, default=DECODE_TOKENS,
                        help=f"tokens to decode at each ({DECODE_TOKENS})")  # fmt: skip
    parser.add_argument("--repeats", metavar="N", type=_positive, default=1,
                        help="walks of each program; medians are reported (1)")  # fmt: skip
    parser.add_argument("--threads", metavar="N", type=_positive, default=None,
                        help="threads of each program (as many as there are CPUs)")  # fmt: skip
    parser.add_argument("--csv", metavar="FILE", nargs="?", const=STDOUT, default=None,
                        help="a row an interval, into FILE beside the usual output; without "
                        "FILE, or with -, that alone")  # fmt: skip
    parser.add_argument("--json", action="store_true", default=False,
                        help="JSON lines only; without it the last line is JSON too")  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Run and print. Raises UsageError, ModelError, OutOfMemory or EngineError."""
    from ds4tui.bench.walk import run_bench
    from ds4tui.library.resolve import resolve_model
    from ds4tui.library.verified import require_sound

    _check_output(args)
    settings = _settings(args)
    path = resolve_model(settings.model, settings.data_dir)
    require_sound(path, settings.data_dir, _say)
    result = run_bench(
        path,
        args.against,
        frontiers=args.frontiers,
        decode_tokens=args.decode_tokens,
        repeats=args.repeats,
        threads=args.threads,
    )
    _print(result, args)
    return 0


def _print(result: "BenchResult", args: argparse.Namespace) -> None:
    from ds4tui.bench.report import csv_text, summary, table

    if args.csv == STDOUT:
        sys.stdout.write(csv_text(result))
        return
    if not args.json:
        print(table(result), end="\n\n")
    print(json.dumps(summary(result)), flush=True)
    if args.csv is not None:
        try:
            Path(args.csv).write_text(csv_text(result), encoding="utf-8")
        except OSError as exc:
            raise _cannot_write(args.csv, exc.strerror or str(exc)) from exc


def _check_output(args: argparse.Namespace) -> None:
    """Before minutes of work, not behind them."""
    if args.csv == STDOUT and args.json:
        raise UsageError(
            "--csv and --json cannot both have standard output.", "Give --csv a file: --csv FILE."
        )
    if args.csv in (None, STDOUT):
        return
    path = Path(args.csv)
    if path.is_dir():
        raise _cannot_write(args.csv, "it is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _cannot_write(
            args.csv, "no permission" if path.parent.is_dir() else "there is no such folder"
        )


def _cannot_write(name: str, why: str) -> UsageError:
    return UsageError(f"The file {name!r} of --csv cannot be written: {why}.")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _settings(args: argparse.Namespace) -> "Settings":
    from ds4tui.config import load_settings

    given = {name: getattr(args, name) for name in ("model", "data_dir") if hasattr(args, name)}
    return load_settings(given)


def _frontiers(text: str) -> tuple[int, ...]:
    numbers = tuple(_positive(part) for part in text.split(","))
    if any(b <= a for a, b in pairwise(numbers)):
        raise argparse.ArgumentTypeError("lengths must grow")
    return numbers


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _at_least_two(text: str) -> int:
    # The first token comes out of the prefill: one token alone takes no decode step.
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError("must be at least 2")
    return number
