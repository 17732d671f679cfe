"""The command line: what there is to type, and who does it.

Nothing heavy is imported before it is known what was asked: `ds4tui --help` needs neither mlx,
numpy, textual nor starlette. Flags that set a setting are read off the settings table.
Exit codes: 0 done, 1 failed, 2 the command or a setting is wrong, 130 interrupted.
"""

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ds4tui import __version__, bench
from ds4tui.arguments import Parser, refuse_unknown
from ds4tui.config import (
    Settings,
    expected,
    flag_of,
    load_settings,
    print_config,
    table,
    unknown_variables,
)
from ds4tui.crash import message, reporting_threads, write_report
from ds4tui.errors import Ds4Error, UsageError
from ds4tui.interrupts import ending_on_interrupt
from ds4tui.logs import logging_set_up

log = logging.getLogger(__name__)

SAMPLING = (
    "temperature top_p top_k min_p repetition_penalty frequency_penalty presence_penalty "
    "seed max_tokens stop"
).split()
WEIGHTS = ["requantise", "quant_scales"]
KV_DISK = ["kv_disk", "kv_disk_dir", "kv_disk_budget"]
ENGINE = [
    "mmproj", "images_kept", "context_tokens", "prefill_chunk_tokens", "sessions", *WEIGHTS,
    *KV_DISK, "log_level", "data_dir",
]  # fmt: skip

USAGE = """ds4tui [-m NAME] [--continue] [--plain]
       ds4tui -p TEXT [-i IMAGE]... [-m NAME] [--json] [OPTION]...
       ds4tui COMMAND [OPTION]..."""

EPILOG = (
    "Every setting can also stand in config.toml or in a DS4TUI_* variable; "
    "--print-config shows them all."
)

_METAVARS = {
    "model": "NAME", "system": "TEXT", "data_dir": "DIR", "kv_disk_dir": "DIR", "mmproj": "FILE",
    "kv_disk_budget": "SIZE",
}  # fmt: skip

# How the parser keeps apart what was given: a flag that was not given leaves no attribute.
_UNSET = argparse.SUPPRESS


@dataclass(frozen=True, slots=True)
class Command:
    """`run` gets the settings in force and the parsed arguments, and returns the exit code."""

    name: str
    help: str
    arguments: Callable[[Parser], None]
    run: Callable[[Settings, argparse.Namespace], int]
    logs: bool = False  # whether log lines are for standard error too


def main(argv: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    _make_streams_usable()
    try:
        try:
            code = _run(given)
        finally:
            sys.stdout.flush()  # here, where a reader that hung up or a full disk is met
    except Ds4Error as exc:
        _say(f"ds4tui: {exc.message}", *([f"  {exc.hint}"] if exc.hint else []))
        return exc.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        ignore_reader()
        return 0  # it has what it wanted
    except OSError as exc:
        if not _is_of_output(exc):
            raise
        ignore_reader()
        _say(f"ds4tui: standard output cannot be written: {exc.strerror}.")
        return 1
    return code


def _run(given: list[str]) -> int:
    parser = build_parser()
    parser.given = given
    args, unknown = parser.parse_known_args(given)
    command: Command | None = getattr(args, "command", None)
    if unknown:
        refuse_unknown(getattr(args, "parser", parser), unknown)
    for sentence in unknown_variables(os.environ):
        _say(f"ds4tui: {sentence}")
    names = {f.name for f in table()}
    settings = load_settings({k: v for k, v in vars(args).items() if k in names})
    if hasattr(args, "print_config"):
        sys.stdout.write(print_config(settings))
        return 0
    is_served = command is not None and command.logs
    with logging_set_up(settings.log_level, to_stderr=is_served), reporting_threads():
        return _dispatch(command, settings, args)


def _dispatch(command: Command | None, settings: Settings, args: argparse.Namespace) -> int:
    try:
        if command is not None:
            _refuse_mixture(args, command)
            return command.run(settings, args)
        return _one_shot(settings, args) if hasattr(args, "prompt") else _open_app(settings, args)
    except (Ds4Error, BrokenPipeError):
        raise
    except Exception as exc:  # the root: whatever comes here is a fault of ours
        if isinstance(exc, OSError) and _is_of_output(exc):
            raise
        log.exception("internal error")
        if os.environ.get("DS4TUI_DEBUG"):
            raise
        what = f"ds4tui {command.name}" if command is not None else "ds4tui"
        _say(message(exc, what, write_report(exc, what)))
        return 1


def _is_of_output(exc: OSError) -> bool:
    """Whether standard output is at fault: what files break on is told with their names."""
    of_writing = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
    return exc.filename is None and exc.errno in of_writing


def ignore_reader() -> None:
    """Point standard output away from a reader that hung up: nothing may be flushed to it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _make_streams_usable() -> None:
    """A closed stream swallows what is written; a character that one cannot show becomes "?"."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


# --- what there is to type ---


def build_parser() -> Parser:
    parser = Parser(
        prog="ds4tui",
        usage=USAGE,
        description="A local assistant in the terminal. Without a command it opens the app.",
        epilog=EPILOG,
        allow_abbrev=False,
        argument_default=_UNSET,
    )
    parser.add_argument("--version", action="version", version=f"ds4tui {__version__}")
    parser.add_argument("--print-config", action="store_true", help="print the settings in force")
    parser.add_argument("--continue", dest="continue_last", action="store_true",
                        help="open the app with the last conversation")  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="chat in plain lines: for screen "
                        "readers, pipes and terminals that cannot move the cursor")  # fmt: skip
    _chat_arguments(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog="ds4tui")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            allow_abbrev=False,
            argument_default=_UNSET,
        )
        sub.set_defaults(command=command, parser=sub)
        command.arguments(sub)
    return parser


def _chat_arguments(parser: Parser) -> None:
    _settings_arguments(parser, ["model", "system"])
    ask = parser.add_argument_group("one question, one answer")
    ask.add_argument("-p", "--prompt", metavar="TEXT",
                     help="answer TEXT and exit; piped standard input is added to it")  # fmt: skip
    ask.add_argument("-i", "--image", metavar="IMAGE", action="append",
                     help="with -p: ask about a picture file; several in their order; "
                     "sample is a screenshot that comes with ds4tui")  # fmt: skip
    ask.add_argument("--json", action="store_true", help="with -p: one JSON event a line")
    _settings_arguments(parser.add_argument_group("choice of tokens"), SAMPLING)
    _settings_arguments(parser.add_argument_group("engine"), ENGINE)


def _serve_arguments(parser: Parser) -> None:
    _settings_arguments(parser, ["model", "host", "port", "api_key", "server_keep_alive", *ENGINE])


def _pull_arguments(parser: Parser) -> None:
    from ds4tui.library.catalogue import CATALOGUE

    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help=f"{', '.join(CATALOGUE)}; or of the Hugging Face hub: owner/repo, owner/repo:Q4_K_M, "
        "owner/repo/file.gguf; nothing: list good ones",
    )
    _settings_arguments(parser, ["data_dir"])


def _models_arguments(parser: Parser) -> None:
    parser.add_argument("--json", dest="as_json", action="store_true", help="as one JSON object")
    parser.add_argument("--catalogue", action="store_true",
                        help="good models to pull, by size of memory")  # fmt: skip
    _settings_arguments(parser, ["data_dir"])
    _show_arguments(parser)


def _show_arguments(parser: Parser) -> None:
    """`ds4tui models show NAME`, behind which flags of `ds4tui models` may stand too."""
    commands = parser.add_subparsers(metavar="show NAME")
    show = commands.add_parser(
        "show",
        help="what a file holds and what it takes here",
        description="What a model's file holds, how this machine would hold it, what that takes.",
        allow_abbrev=False,
        argument_default=_UNSET,
    )
    show.add_argument("show_name", metavar="NAME", help="a known name, a file of the models "
                      "folder, or a path")  # fmt: skip
    show.add_argument("--json", dest="as_json", action="store_true", help="as one JSON object")
    show.add_argument("--plan", action="store_true", help="only the bytes of weights, a token, a "
                      "snapshot, and the longest context")  # fmt: skip
    show.add_argument("--memory", metavar="SIZE", help="plan for so much memory, as 16GiB; "
                      "else for what is available now")  # fmt: skip
    show.add_argument("--measure", action="store_true", help="measure the errors of quantising "
                      "anew, on samples; takes some seconds a gigabyte")  # fmt: skip
    _settings_arguments(show, ["context_tokens", *WEIGHTS, "data_dir"])


def _doctor_arguments(parser: Parser) -> None:
    parser.add_argument("--json", dest="as_json", action="store_true", help="as one JSON object")
    _settings_arguments(parser, ["model", "context_tokens", *WEIGHTS, "data_dir"])


def _launch_arguments(parser: Parser) -> None:
    from ds4tui.launch_arguments import add_arguments

    add_arguments(parser, lambda group: _settings_arguments(group, ["model", "host", "port"]))


def _settings_arguments(group: Any, names: Sequence[str]) -> None:
    """Flags of the settings `names`; their values are checked with all other settings."""
    fields = {f.name: f for f in table()}
    for name in names:
        f = fields[name]
        flags = ["-m", "--model"] if name == "model" else [flag_of(name)]
        group.add_argument(
            *flags,
            dest=name,
            default=_UNSET,
            metavar=_METAVARS.get(name, "VALUE"),
            action="append" if name == "stop" else "store",
            help=_flag_help(f),
        )
        if name == "kv_disk_budget":
            group.add_argument("--no-kv-disk", dest="kv_disk", action="store_const", const="off",
                               default=_UNSET, help="keep no KV states on disk")  # fmt: skip


def _flag_help(f: Any) -> str:
    if f.name == "model":
        return "a known name, a file of the models folder, or a path"
    words = expected(f).removeprefix("a number ").removeprefix("a whole number ")
    bounded = f.metadata["choices"] or " to " in words
    return f"{f.metadata['help']} ({words})" if bounded else str(f.metadata["help"])


# --- who does it ---


def _refuse_mixture(args: argparse.Namespace, command: Command) -> None:
    flags = {"prompt": "-p", "image": "-i", "json": "--json", "continue_last": "--continue",
             "plain": "--plain"}  # fmt: skip
    if command.name == "bench":  # it has a --json of its own
        del flags["json"]
    for name, flag in flags.items():
        if hasattr(args, name):
            raise UsageError(f"{flag} does not go with the command {command.name}.")


def _one_shot(settings: Settings, args: argparse.Namespace) -> int:
    if hasattr(args, "continue_last"):
        raise UsageError("--continue opens the app and does not go with -p.")
    if hasattr(args, "plain"):
        raise UsageError("--plain is a chat and does not go with -p.")
    with ending_on_interrupt():
        from ds4tui.oneshot import one_shot, piped_stdin
        from ds4tui.opening import open_assistant

    as_json = hasattr(args, "json")
    images = getattr(args, "image", ())
    return one_shot(settings, args.prompt, as_json, open_assistant, piped_stdin(), images)


def _open_app(settings: Settings, args: argparse.Namespace) -> int:
    for name in ("image", "json"):
        if hasattr(args, name):
            raise UsageError(f"--{name} goes with -p TEXT.")
    if hasattr(args, "plain"):
        from ds4tui.terminal import open_plain

        return open_plain(settings, hasattr(args, "continue_last"))
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "The app needs a terminal for standard input and output.",
            "For one answer in a pipe: ds4tui -p TEXT (piped text is added to it); for a chat: "
            "ds4tui --plain.",
        )
    from ds4tui.terminal import open_app

    return open_app(settings, hasattr(args, "continue_last"))


def _serve(settings: Settings, args: argparse.Namespace) -> int:
    with ending_on_interrupt():
        from ds4tui import serve
        from ds4tui.opening import open_assistant

    return serve.run(settings, lambda name, progress: open_assistant(name, settings, progress))


def _pull(settings: Settings, args: argparse.Namespace) -> int:
    from ds4tui.library.command import pull_command

    return pull_command(getattr(args, "name", None), settings.data_dir)


def _models(settings: Settings, args: argparse.Namespace) -> int:
    if hasattr(args, "show_name"):
        if hasattr(args, "plan") or hasattr(args, "memory"):
            from ds4tui.library.plan import show_plan

            memory, plan_as_json = getattr(args, "memory", None), hasattr(args, "as_json")
            return show_plan(settings, args.show_name, memory, plan_as_json, sys.stdout)
        from ds4tui.library.show import show

        as_json, measure = hasattr(args, "as_json"), hasattr(args, "measure")
        return show(settings, args.show_name, as_json, measure, sys.stdout)
    from ds4tui.library.command import models_command

    return models_command(settings.data_dir, hasattr(args, "as_json"), hasattr(args, "catalogue"))


def _doctor(settings: Settings, args: argparse.Namespace) -> int:
    with ending_on_interrupt():
        from ds4tui.doctor import doctor

        return doctor(settings, sys.stdout, hasattr(args, "as_json"))


def _selftest(settings: Settings, args: argparse.Namespace) -> int:
    with ending_on_interrupt():
        from ds4tui.selftest import selftest

    return selftest(settings, sys.stdout, hasattr(args, "as_json"))


def _cache(settings: Settings, args: argparse.Namespace) -> int:
    from ds4tui.cache_command import run

    return run(settings, args, sys.stdout)


def _cache_arguments(parser: Parser) -> None:
    from ds4tui.cache_arguments import add_arguments

    add_arguments(parser, lambda group: _settings_arguments(group, [*KV_DISK, "data_dir"]))


def _launch(settings: Settings, args: argparse.Namespace) -> int:
    from ds4tui.launch import run

    return run(settings, args.agent, hasattr(args, "write"), sys.stdout)


def _bench(settings: Settings, args: argparse.Namespace) -> int:
    return bench.main(args)


COMMANDS = (
    Command(
        "serve",
        "serve a model over HTTP, as OpenAI clients expect",
        _serve_arguments,
        _serve,
        logs=True,
    ),
    Command("pull", "fetch a model, from the Hugging Face hub too", _pull_arguments, _pull),
    Command(
        "models",
        "list the models on this machine, and whether they fit; show NAME tells all about one",
        _models_arguments,
        _models,
    ),
    Command(
        "doctor",
        "say what this machine and installation can do, and what to do about what is wrong",
        _doctor_arguments,
        _doctor,
    ),
    Command(
        "selftest",
        "check this machine's results, and print a report that can be pasted into an issue",
        _doctor_arguments,
        _selftest,
    ),
    Command(
        "cache",
        "list, check and clean the conversations' KV states on disk",
        _cache_arguments,
        _cache,
    ),
    Command(
        "launch",
        "print or write the settings that point a coding agent at the local server",
        _launch_arguments,
        _launch,
    ),
    Command("bench", "measure prefill and decode rates, and memory", bench.add_arguments, _bench),
)
