"""`ds4tui selftest`: what it prints, what it leaves, and that each of its checks can fail."""

import builtins
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4tui import selftest as selftests
from ds4tui.chat.store import ConversationStore
from ds4tui.cli import main
from ds4tui.config import load_settings
from ds4tui.doctor import private
from ds4tui.engine.state import ModelState
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import UsageError
from ds4tui.kernels import choice
from ds4tui.library.resolve import models_dir
from ds4tui.selftest import server_checks as servers
from ds4tui.selftest.checks import Check, Outcome, Wrong, outcomes
from ds4tui.selftest.engine_checks import TinyModel, engine_checks, twin_checks
from ds4tui.selftest.server_checks import server_checks
from ds4tui.selftest.store_checks import store_checks
from ds4tui.server.runner import ServerHandle

NAMES = [
    "decoder step of C++ against the reference",
    "a GGUF written by the gguf package and read",
    "text to tokens and back",
    "a model against the plain reference",
    "the same again, bit for bit",
    "rewound, bit for bit",
    "rewound and gone on, against a cold run",
    "conversations kept and opened again",
    "an old database of conversations brought up to date",
    "the server answers on a free port",
]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> TinyModel:
    return TinyModel(tmp_path)


def test_every_check_is_run_and_nothing_is_left(
    temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selftest"]) == 0
    out = capsys.readouterr().out
    for name in NAMES:
        assert f" s  {name}: ok" in out
    assert out.splitlines()[-1].startswith("all ") and "FAILED" not in out
    for title in ("device", "BLAS", "C++ compiler", "twins", "models"):
        assert f"\n{title}\n" in out
    assert list(temporary.iterdir()) == []


def test_it_needs_no_terminal_no_model_and_no_network(own_home: Path) -> None:
    """What it opens is on this machine; a proxy that is not there does not matter."""
    program = (
        "import sys, socket\n"
        "real = socket.socket.connect\n"
        "def connect(self, address):\n"
        "    assert self.family == socket.AF_UNIX or address[0] == '127.0.0.1', address\n"
        "    return real(self, address)\n"
        "socket.socket.connect = connect\n"
        "from ds4tui.cli import main\n"
        "sys.exit(main(['selftest', '--json']))"
    )
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "TERM": "xterm"}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    whole = json.loads(ran.stdout)
    assert whole["passed"] is True
    assert {check["name"] for check in whole["checks"]} >= set(NAMES)
    assert all(check["passed"] and check["seconds"] >= 0 for check in whole["checks"])
    assert [section["title"] for section in whole["sections"]][-2:] == ["terminal", "models"]
    left = [path for path in own_home.rglob("*") if path.is_file()]
    assert left == []


def test_nothing_private_is_told(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(private, "_user_name", lambda: "maria")
    monkeypatch.setattr(sys, "executable", f"{own_home}/venv/bin/python")
    monkeypatch.setattr(selftests, "all_checks", lambda folder: [failing("in /srv/maria/x")])
    folder = models_dir(tmp_path / "data")
    folder.mkdir(parents=True)
    (folder / "secret-project.gguf").write_bytes(b"not a model at all")
    for arguments in (["selftest"], ["selftest", "--json"]):
        assert main([*arguments, "-m", "secret-project"]) == 1
        out = capsys.readouterr().out
        assert "secret-project" not in out and "MODEL" in out
        assert str(own_home) not in out and "~/venv/bin/python" in out
        assert "maria" not in out and "in /srv/USER/x" in out


def test_models_are_counted_and_a_known_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftests, "all_checks", lambda folder: [])
    folder = models_dir(tmp_path / "data")
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(b"not a model at all")
    assert main(["selftest"]) == 0
    out = capsys.readouterr().out
    assert "2 listed, 0 of them can be read" in out
    assert "smollm2 is not on this machine yet" in out and "mine" not in out


# --- each check can fail ---


def failing(words: str) -> Check:
    def run() -> str:
        raise Wrong(words)

    return Check("a check", run)


def test_a_failure_is_told_and_the_others_are_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], temporary: Path
) -> None:
    monkeypatch.setattr(
        selftests, "all_checks", lambda folder: [failing("it\nis 5"), Check("another", lambda: "")]
    )
    assert main(["selftest"]) == 1
    out = capsys.readouterr().out
    assert "a check: FAILED: it is 5\n" in out and "another: ok\n" in out
    assert out.splitlines()[-1].startswith("1 of 2 checks FAILED")
    assert list(temporary.iterdir()) == []


def test_what_nobody_expected_is_a_failure_too() -> None:
    (found,) = outcomes([Check("odd", lambda: str(1 // 0))])
    assert not found.passed and found.detail.startswith("ZeroDivisionError: ")


def test_an_interrupt_ends_it_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    def interrupted() -> str:
        assert len(list(temporary.iterdir())) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(selftests, "all_checks", lambda folder: [Check("x", interrupted)])
    assert main(["selftest"]) == 130
    assert list(temporary.iterdir()) == []


def test_a_missing_package_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith(("mlx", "ds4tui.kernels.choice")):
            raise ImportError("no mlx")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["selftest"]) == 1
    assert "packages are there: FAILED: no mlx; no check can be run" in capsys.readouterr().out


def outcome_of(name: str, made: Iterator[Check]) -> Outcome:
    (found,) = outcomes([check for check in made if check.name == name])
    return found


def test_a_twin_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = choice.Twin("decoder step", "C++", "cpu", lambda: "1 rows: differs by 3")
    monkeypatch.setattr(choice, "TWINS", {"decoder step cpu": twin})
    (found,) = outcomes(twin_checks())
    assert not found.passed and found.detail == "1 rows: differs by 3"


def test_a_twin_that_is_not_to_be_had_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> str:
        raise choice.Unavailable("no C++ compiler")

    twin = choice.Twin("decoder step", "C++", "cpu", unavailable)
    monkeypatch.setattr(choice, "TWINS", {"decoder step cpu": twin})
    (found,) = outcomes(twin_checks())
    assert found.passed and found.detail == "not to be had here: no C++ compiler"


def test_a_file_that_is_read_as_another(tiny: TinyModel) -> None:
    assert tiny.path.is_file()
    name = "output_norm.weight"
    raw, kind = tiny.written[name]
    tiny.written[name] = (raw ^ 1, kind)
    found = outcome_of(NAMES[1], engine_checks(tiny))
    assert not found.passed and name in found.detail


def test_text_that_comes_back_as_another(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: real(self, ids).strip())
    found = outcome_of(NAMES[2], engine_checks(tiny))
    assert not found.passed and "became" in found.detail


class Faulty:
    """A model whose logits get `fault` of the number of steps so far, beside their largest."""

    def __init__(self, model: Any, fault: Callable[[int], float]) -> None:
        self._model, self._fault, self._steps = model, fault, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, rows: Any, state: Any) -> Any:
        logits = self._model.forward(rows, state)
        self._steps += 1
        if logits is None:
            return None
        values = np.array(logits)
        values[..., 7] += self._fault(self._steps) * np.abs(values).max()
        return values


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (NAMES[3], lambda step: 1e-3),  # wrong, and always alike
        (NAMES[3], lambda step: float("nan")),
        (NAMES[4], lambda step: 1e-6 * step),  # never twice the same
        (NAMES[5], lambda step: 1e-6 * step),
        (NAMES[6], lambda step: 1e-3 * step),
    ],
)
def test_a_model_that_computes_something_else(
    name: str, fault: Callable[[int], float], tiny: TinyModel
) -> None:
    assert outcome_of(name, engine_checks(tiny)).passed
    tiny.model = Faulty(tiny.model, fault)  # type: ignore[misc]
    assert not outcome_of(name, engine_checks(tiny)).passed


def test_rows_that_are_not_kept(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelState, "can_rewind", lambda self, to: False)
    found = outcome_of(NAMES[6], engine_checks(tiny))
    assert not found.passed and "only 0 of 77" in found.detail


def test_conversations_that_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConversationStore, "update_message", lambda self, *values: None)
    found = outcome_of(NAMES[7], store_checks(tmp_path))
    assert not found.passed and "came back" in found.detail


def test_a_database_that_is_not_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds4tui.chat.store.migrate", lambda db: None)
    assert not outcome_of(NAMES[8], store_checks(tmp_path)).passed


def test_a_server_that_does_not_start(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> ServerHandle:
        raise UsageError("Port 1 is busy.")

    monkeypatch.setattr(ServerHandle, "start", refuse)
    found = outcome_of(NAMES[9], server_checks(tiny))
    assert not found.passed and found.detail == "UsageError: Port 1 is busy."


def test_a_server_that_answers_something_else(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(servers.QUESTION, "temperature", -1)
    found = outcome_of(NAMES[9], server_checks(tiny))
    assert not found.passed and "said 400" in found.detail


def test_no_folder_for_temporary_files_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: object) -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", none)
    with pytest.raises(UsageError, match="temporary files") as caught:
        selftests.selftest(load_settings({}), io.StringIO())
    assert "TMPDIR" in (caught.value.hint or "")


def test_a_wrong_choice_of_kernels_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", "bogus")
    out = io.StringIO()
    assert selftests.selftest(load_settings({}), out, as_json=True) == 1
    checks = json.loads(out.getvalue())["checks"]
    assert [c["passed"] for c in checks] == [False] and "DS4TUI_KERNELS" in checks[0]["detail"]


def test_without_a_folder_for_temporary_files_it_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of those that Python tries can be written to."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    assert main(["selftest"]) == 2
    assert "Set TMPDIR to one that can." in capsys.readouterr().err
