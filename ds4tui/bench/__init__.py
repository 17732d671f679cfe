"""`ds4tui bench`: prefill and decode rates at growing lengths, alone or beside llama.cpp.

One text is walked to growing frontiers. At each one the new tokens are evaluated (prefill) and a
short greedy reply is decoded, which is dropped again before the next one. With a peer, both walk
the same token ids of the same file with the same number of threads, taking turns, and who goes
first changes each time. Nothing heavy is imported before `main` runs.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

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
    with _rows_file(args.csv) as rows:
        result = run_bench(
            path,
            args.against,
            frontiers=args.frontiers,
            decode_tokens=args.decode_tokens,
            repeats=args.repeats,
            threads=args.threads,
        )
        _print(result, args, rows)
    return 0


def _print(result: "BenchResult", args: argparse.Namespace, rows: TextIO | None) -> None:
    from ds4tui.bench.report import csv_text, summary, table

    if args.csv == STDOUT:
        sys.stdout.write(csv_text(result))
        return
    if not args.json:
        print(table(result), end="\n\n")
    print(json.dumps(summary(result)), flush=True)
    if rows is not None:
        try:
            rows.truncate(0)
            rows.write(csv_text(result))
            rows.flush()
        except OSError as exc:
            raise _cannot_write(args.csv, exc.strerror or str(exc)) from exc


def _check_output(args: argparse.Namespace) -> None:
    if args.csv == STDOUT and args.json:
        raise UsageError(
            "--csv and --json cannot both have standard output.", "Give --csv a file: --csv FILE."
        )
    if args.csv not in (None, STDOUT):
        with _rows_file(args.csv):
            pass


@contextmanager
def _rows_file(name: str | None) -> Iterator[TextIO | None]:
    """The file of --csv, open before minutes of work and not behind them; what it held stays
    until there are rows. A new one goes again if there will be none. None: none is wanted."""
    if name in (None, STDOUT):
        yield None
        return
    path = Path(name)
    is_new = not path.exists()
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as exc:
        raise _cannot_write(name, _why(path, exc)) from exc
    with file:
        try:
            yield file
        finally:
            if is_new and path.exists() and not path.stat().st_size:
                path.unlink()


def _why(path: Path, error: OSError) -> str:
    if path.is_dir():
        return "it is a folder"
    if not path.parent.is_dir():
        return "there is no such folder"
    return error.strerror or str(error)


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
        raise argparse.ArgumentTypeError(f"{text!r}: each length must be more than the one before")
    return numbers


def _positive(text: str) -> int:
    return _at_least(1, text)


def _at_least_two(text: str) -> int:
    # The first token comes out of the prefill: one token alone takes no decode step.
    return _at_least(2, text)


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, not {number}")
    return number
