import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ds4tui import __version__, cli
from ds4tui.cli import COMMANDS, build_parser, main
from ds4tui.config import Settings, config_path, log_path, table
from ds4tui.errors import OutOfMemory, UsageError
from ds4tui.library.resolve import models_dir

HEAVY = {"mlx", "numpy", "textual", "starlette", "uvicorn", "jinja2", "tokenizers", "gguf", "PIL"}


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ds4tui", *arguments], capture_output=True, text=True, input=""
    )


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('MODULES', *sys.modules))\n"
        "from ds4tui.cli import main\n"
        f"main({arguments})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in ran.stdout.partition("MODULES")[2].split()}
    assert "ds4tui" in loaded
    assert not loaded & HEAVY


def test_help_answers_at_once() -> None:
    """It loads a few modules beside those of a bare Python: what takes time is loading them."""

    def modules(*command: str) -> int:
        told = subprocess.run(
            [sys.executable, "-X", "importtime", *command], capture_output=True, check=True
        )
        return told.stderr.count(b"import time:")

    assert modules("-m", "ds4tui", "--help") - modules("-c", "pass") < 160


def test_both_names_of_the_program_answer_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version").stdout == f"ds4tui {__version__}\n"
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"ds4tui {__version__}\n"


def test_help_lists_what_there_is() -> None:
    text = build_parser().format_help()
    for command in COMMANDS:
        assert f"    {command.name} " in text


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("there are no commands")


def test_the_fixed_names_are_there() -> None:
    parser = build_parser()
    assert set(options(parser)) >= set(
        "-m --continue --plain -p -i --json --temperature --seed --max-tokens --system --top-p "
        "--top-k --min-p --repetition-penalty --stop --print-config --version".split()
    )
    commands = subparsers(parser)
    assert set(commands) == set("serve pull models doctor bench cache launch selftest".split())
    assert set(options(commands["serve"])) >= set(
        "-m --host --port --sessions --kv-disk-dir --kv-disk-budget --no-kv-disk --api-key".split()
    )


# --- refusals: one clear sentence, exit code 2 ---


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cache", "--list"], "There is no option --list."),
        (["cache", "prune", "--to", "much"], "--to must be a size as 5GB, with its unit"),
        (["cache", "show", "nothing"], "No stored conversation is called nothing."),
        (["launch", "vim"], "There is no command 'vim' of ds4tui launch."),
        (["launch"], "AGENT"),
        (["-p", "x", "-i", "none.png"], "There is no file none.png"),
        (["-i", "a.png"], "--image goes with -p"),
        (["--json"], "--json goes with -p"),
        (["-p", "x", "--continue"], "--continue opens the app"),
        (["-p", "x", "--plain"], "--plain is a chat"),
        (["--plain", "models"], "--plain does not go with the command models"),
        (["-p", "x", "models"], "-p does not go with the command models"),
        (["--json", "models"], "--json does not go with the command models"),
        (["serve", "--sessions", "0"], "sessions must be a whole number from 1 to 64"),
        (["--sessions", "many"], "sessions must be a whole number from 1 to 64"),
        (["serve", "--kv-disk-budget", "much"], "kv_disk_budget must be a size as 20GB"),
        (["serve", "--kv-disk", "perhaps"], "kv_disk must be one of on, off"),
        (["-p", "x", "--temperature", "11"], "--temperature: temperature must be a number from 0"),
        (["serve", "--port", "http"], "--port: port must be a whole number"),
        (["-p", ""], "nothing to ask"),
        (["-p"], "-p/--prompt needs a value."),
        (["--json=1"], "--json takes no value."),
        (["--tempreture", "1"], "There is no option --tempreture (did you mean --temperature?)."),
        (["serve", "--prot", "1"], "There is no option --prot (did you mean --port?)."),
        (["-p", "hi", "--port", "99"], "--port goes with ds4tui serve and ds4tui launch only."),
        (["--port=99"], "--port goes with ds4tui serve and ds4tui launch only."),
        (["-p", "hi", "there"], "There is no command 'there' of ds4tui."),
        (["pull", "smollm2", "more"], "'more' is one too many."),
        (["models", "smollm2"], "There is no command 'smollm2' of ds4tui models."),
        (["bench", "--against"], "--against needs a value."),
        (["bench", "--against", "x"], "--against: invalid choice: 'x'"),
        ([], "needs a terminal"),
        (["--continue"], "needs a terminal"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and sentence in err
    assert err.startswith("ds4tui: ") and len(err.splitlines()) <= 2


@pytest.mark.parametrize("arguments", [["--nonsense"], ["serve", "--nonsense"], ["nonsense"]])
def test_an_unknown_word_is_a_usage_error(arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2 and "nonsense" in ran.stderr and ran.stdout == ""


def served(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Settings:
    """The settings that serve gets from a command line."""
    from ds4tui import serve

    got: list[Settings] = []

    def run(settings: Settings, open_model: serve.OpenModel) -> int:
        got.append(settings)
        return 0

    monkeypatch.setattr(serve, "run", run)
    assert main(arguments) == 0
    return got[0]


def test_serve_takes_every_flag_that_is_true_already(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = served(
        monkeypatch, "serve", "-m", "mine", "--host", "::1", "--port", "0", "--sessions", "3",
        "--no-kv-disk", "--api-key", "k",
    )  # fmt: skip
    assert (settings.model, settings.host, settings.port, settings.api_key) == (
        "mine", "::1", 0, "k",
    )  # fmt: skip
    assert settings.sessions == 3


def test_where_kv_states_are_kept_and_how_much(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    by_default = served(monkeypatch, "serve")
    assert by_default.kv_disk == "on" and by_default.kv_budget_bytes is None
    assert by_default.kv_dir == by_default.data_dir / "kv"
    given = served(
        monkeypatch, "serve", "--kv-disk", "on", "--kv-disk-dir", str(tmp_path),
        "--kv-disk-budget", "1.5GiB",
    )  # fmt: skip
    assert (given.kv_disk, given.kv_dir) == ("on", tmp_path)
    assert given.kv_budget_bytes == 3 * 2**29
    assert served(monkeypatch, "serve", "--kv-disk", "on", "--no-kv-disk").kv_disk == "off"


def test_a_flag_before_the_command_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, "-m", "first", "serve").model == "first"
    assert served(monkeypatch, "-m", "first", "serve", "-m", "second").model == "second"


# --- settings on the command line ---


def test_print_config_shows_what_is_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--top-k", "7", "--stop", "a", "--stop", "b", "--print-config"]) == 0
    out = capsys.readouterr().out
    assert "top_k = 7  # --top-k" in out and out.count("\n") >= len(table())


def test_a_bad_settings_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    config_path().parent.mkdir()
    config_path().write_text("modle = 'x'\n")
    assert main(["models"]) == 2
    assert capsys.readouterr().err == (
        f"ds4tui: {config_path()}, line 1: there is no setting 'modle' (did you mean model?).\n"
    )


def test_an_unknown_variable_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4TUI_PROT", "1")
    assert main(["models"]) == 0
    assert "DS4TUI_PROT is not a variable that ds4tui reads" in capsys.readouterr().err


def test_every_percent_sign_in_help_is_written_out() -> None:
    parser = build_parser()
    for each in [parser, *subparsers(parser).values()]:
        each.format_help()


# --- commands ---


def test_models_lists_known_and_local_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    folder = models_dir(tmp_path / "elsewhere")
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(bytes(2_500_000))
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"half")
    assert main(["models", "--data-dir", str(tmp_path / "elsewhere")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("smollm2") and "damaged: ds4tui pull smollm2" in lines[0]
    assert lines[1].startswith("mine (ds4tui): mine.gguf is not a GGUF file")
    assert f"kept in {folder}" in lines[-1]


def test_without_the_model_the_command_is_named() -> None:
    ran = run("-p", "hi")
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr.splitlines()[-1] == "  Run: ds4tui pull smollm2"


def test_pull_of_an_unknown_model() -> None:
    ran = run("pull", "nothing")
    assert ran.returncode == 2 and "Known are: smollm2" in ran.stderr


@pytest.mark.parametrize("name", ["", "nothing", "/nowhere/x.gguf"])
def test_an_unknown_model_is_a_wrong_command(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["-m", name, "-p", "hi"]) == 2
    assert capsys.readouterr().err.startswith("ds4tui: The")


# --- how it ends ---


def fails_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def failing(settings: Settings, args: Any) -> int:
        raise error

    broken = [cli.Command(c.name, c.help, c.arguments, failing) for c in COMMANDS]
    monkeypatch.setattr(cli, "COMMANDS", broken)
    return main(["models"])


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UsageError("wrong."), 2, "ds4tui: wrong.\n"),
        (OutOfMemory("It", 2**30, 2**20), 1, "ds4tui: It needs 1,024 MiB, 1 MiB are available."),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_its_words_and_its_exit_code(
    error: BaseException,
    code: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fails_with(monkeypatch, error) == code
    err = capsys.readouterr().err
    assert err.startswith(says) and "Traceback" not in err


def test_a_fault_of_ours_is_logged_and_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS4TUI_DEBUG")
    assert fails_with(monkeypatch, ZeroDivisionError("oh")) == 1
    err = capsys.readouterr().err
    (report,) = (log_path().parent / "crashes").iterdir()
    assert "(ZeroDivisionError)" in err and str(report) in err and "oh" not in err
    assert "Traceback" in log_path().read_text()
    monkeypatch.setenv("DS4TUI_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        fails_with(monkeypatch, ZeroDivisionError("oh"))


def test_a_log_that_cannot_be_written_is_done_without(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_path().mkdir(parents=True)  # a folder where the file should be
    assert main(["models"]) == 0
    assert "no log file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["models", "--catalogue"], ["--print-config"]])
def test_a_full_disk_behind_standard_output_is_told(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "ds4tui", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr == "ds4tui: standard output cannot be written: No space left on device.\n"


def test_a_full_disk_behind_an_answer_is_told() -> None:
    program = (
        "import sys; from ds4tui import cli; from tests.fakes import FakeAssistant\n"
        "import ds4tui.opening as opening\n"
        "opening.open_assistant = lambda *given: FakeAssistant('x' * 99)\n"
        "sys.exit(cli.main(['-p', 'hi']))"
    )
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr == "ds4tui: standard output cannot be written: No space left on device.\n"


def test_a_reader_that_hangs_up_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "ds4tui", "--print-config"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0
