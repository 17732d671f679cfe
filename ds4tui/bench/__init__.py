"""`ds4tui bench`: prefill and decode rates at growing lengths, alone or beside llama.cpp.

One text is walked to growing frontiers. At each one the new tokens are evaluated (prefill) and a
short greedy reply is decoded, which is dropped again before the next one. With a peer, both walk
the same token ids of the same file with the same number of threads, taking turns, and who goes
first changes each time. Nothing heavy is imported before `main` runs.
"""

import argparse
import json
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ds4tui.config import Settings

FRONTIERS = (128, 512, 1024, 2048)
DECODE_TOKENS = 48
PEERS = ("llama.cpp",)


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
    parser.add_argument("--json", action="store_true", default=False,
                        help="JSON lines only; without it the last line is JSON too")  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Run and print. Raises UsageError, ModelError, OutOfMemory or EngineError."""
    from ds4tui.bench.report import summary, table
    from ds4tui.bench.walk import run_bench
    from ds4tui.library.resolve import resolve_model

    settings = _settings(args)
    result = run_bench(
        resolve_model(settings.model, settings.data_dir),
        args.against,
        frontiers=args.frontiers,
        decode_tokens=args.decode_tokens,
        repeats=args.repeats,
        threads=args.threads,
    )
    if not args.json:
        print(table(result), end="\n\n")
    print(json.dumps(summary(result)))
    return 0


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
