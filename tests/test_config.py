import math
import re
import subprocess
import sys
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.config import (
    OTHER_VARIABLES,
    Settings,
    config_path,
    load_settings,
    print_config,
    save_state,
    state_path,
    table,
    unknown_variables,
    variable_of,
)
from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.sampling_defaults import OwnSampling, SamplingDefaults
from ds4tui.errors import ConfigError
from ds4tui.kernels.policy import LoadedWeightsPolicy
from tests.scale import scaled


def write_config(text: str) -> Path:
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text(text)
    return config_path()


def test_with_nothing_set_the_defaults_are_in_force(tmp_path: Path) -> None:
    found = load_settings()
    assert found == replace(Settings(), data_dir=tmp_path / "data")
    assert found.models_dir == tmp_path / "data" / "models"


def test_the_stronger_layer_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    write_config("top_k = 1\ntop_p = 0.1\nport = 1\nseed = 1\n")
    save_state(top_k=2, top_p=0.2, port=2)
    monkeypatch.setenv("DS4TUI_TOP_K", "3")
    monkeypatch.setenv("DS4TUI_TOP_P", "0.3")
    found = load_settings({"top_k": "4"})
    assert (found.top_k, found.top_p, found.port, found.seed) == (4, 0.3, 2, 1)
    origin = {name: found.sources[name] for name in ("top_k", "top_p", "port", "seed")}
    assert origin == {
        "top_k": "--top-k",
        "top_p": "DS4TUI_TOP_P",
        "port": str(state_path()),
        "seed": str(config_path()),
    }


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_name() -> None:
    path = write_config('# mine\nsystem = """\ntemprature = 9\n"""\n\ntemprature = 0.5\n')
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert str(caught.value) == (
        f"{path}, line 6: there is no setting 'temprature' (did you mean temperature?)."
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("temperature = 11", "temperature must be a number from 0 to 10, not 11.0."),
        ('temperature = "hot"', "temperature must be a number from 0 to 10, not 'hot'."),
        ("temperature = nan", "temperature must be a number from 0 to 10, not nan."),
        ("temperature = true", "temperature must be a number from 0 to 10, not True."),
        ("top_k = 1.5", "top_k must be a whole number from 0 up, not 1.5."),
        ("top_k = true", "top_k must be a whole number from 0 up, not True."),
        ("model = 3", "model must be a text, not 3."),
        ("stop = 'x'", "stop must be a list of texts that are not empty, not 'x'."),
        ("stop = ['a', '']", "stop must be a list of texts that are not empty, not ['a', '']."),
        ("log_level = 'loud'", "log_level must be one of debug, info, warning, error, not 'loud'."),
        ("data_dir = 1", "data_dir must be a folder, not 1."),
        ('data_dir = "a\\u0000b"', "data_dir cannot be 'a\\x00b': no name holds a NUL."),
        (
            "temperature = 1" + "0" * 320,
            f"temperature must be a number from 0 to 10, not 1{'0' * 76}....",
        ),
        (
            "temperature = -3000000000",
            "temperature must be a number from 0 to 10, not -3000000000.",
        ),
        ("[server]\nport = 1", "there is no setting 'server'."),
        ("sources = 1", "there is no setting 'sources'."),
    ],
)
def test_a_bad_value_is_named_with_what_it_must_be(line: str, complaint: str) -> None:
    path = write_config(f"top_p = 1\n\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert str(caught.value) == f"{path}, line 3: {complaint}"


@pytest.mark.parametrize(
    ("content", "said"),
    [("a = " + "[" * 100_000, "nested too deeply"), ("top_k = " + "9" * 5000, "of digits")],
)
def test_a_file_that_python_cannot_take_is_named(content: str, said: str) -> None:
    path = write_config(content)
    with pytest.raises(ConfigError, match=said) as caught:
        load_settings()
    assert str(path) in caught.value.message and len(caught.value.message) < 300


@pytest.mark.parametrize("below", ["", "below/it"])
def test_a_file_in_place_of_the_data_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    said = rf"data_dir must be a folder, and {file} is a file\.$"
    with pytest.raises(ConfigError, match=f"^--data-dir: {said}"):
        load_settings({"data_dir": str(file / below)})
    monkeypatch.setenv("DS4TUI_DATA_DIR", str(file / below))
    with pytest.raises(ConfigError, match=f"^DS4TUI_DATA_DIR: {said}"):
        load_settings()


def test_a_flag_of_thousands_of_digits_is_shown_shortened() -> None:
    with pytest.raises(ConfigError, match=r"^--seed: seed must be .*\.\.\.\.$") as caught:
        load_settings({"seed": "9" * 5000})
    assert len(caught.value.message) < 200


def test_a_bad_variable_and_a_bad_flag_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^--max-tokens: max_tokens must be .* not 'many'\.$"):
        load_settings({"max_tokens": "many"})
    monkeypatch.setenv("DS4TUI_PORT", "70000")
    with pytest.raises(ConfigError, match=r"^DS4TUI_PORT: port must be .* not 70000\.$"):
        load_settings()


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TUI_PORT", "")
    assert load_settings().port == Settings().port


def test_bad_syntax_is_told_with_its_place() -> None:
    path = write_config("top_p = 1\nport 80\n")
    with pytest.raises(ConfigError, match=r"not valid TOML: .*line 2, column 6"):
        load_settings()
    path.write_bytes(b"model = '\xff'\n")
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 9\)"):
        load_settings()
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings()


def test_unknown_variables_are_warnings() -> None:
    said = unknown_variables({"DS4TUI_MODLE": "x", "DS4TUI_MODEL": "x", "DS4TUI_DEBUG": "1"})
    assert said == [
        "DS4TUI_MODLE is not a variable that ds4tui reads (did you mean DS4TUI_MODEL?)."
    ]


def test_every_variable_that_the_code_reads_is_known() -> None:
    known = {variable_of(f.name) for f in table()} | OTHER_VARIABLES.keys()
    root = Path(__file__).parent.parent
    for source in [*root.glob("ds4tui/**/*.py"), *root.glob("tests/conftest.py")]:
        named = set(re.findall(r"DS4TUI_[A-Z0-9_]*[A-Z0-9]", source.read_text()))
        assert named <= known, source


def test_state_keeps_changes_and_forgets_on_none() -> None:
    save_state(model="mine", theme="nord")
    save_state(theme="gruvbox", stop=("a", "b"))
    assert tomllib.loads(state_path().read_text()) == {
        "model": "mine",
        "theme": "gruvbox",
        "stop": ["a", "b"],
    }
    save_state(model=None)
    found = load_settings()
    assert (found.model, found.theme, found.stop) == ("smollm2", "gruvbox", ("a", "b"))
    assert not config_path().exists()


def test_state_refuses_what_could_not_be_read_back() -> None:
    with pytest.raises(ConfigError, match="there is no setting 'colour'"):
        save_state(colour="red")
    with pytest.raises(ConfigError, match="port must be"):
        save_state(port=-1)
    assert not state_path().exists()


def test_state_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_state(theme="nord")


def test_two_processes_that_change_the_state_at_once_keep_both_changes() -> None:
    code = (
        "import sys; from ds4tui.config import save_state\n"
        "for i in range(30): save_state(**{sys.argv[1]: i})"
    )
    names = ("top_k", "seed", "port")
    running = [subprocess.Popen([sys.executable, "-c", code, name]) for name in names]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert tomllib.loads(state_path().read_text()) == dict.fromkeys(names, 29)


def test_print_config_is_toml_that_says_where_values_come_from() -> None:
    write_config("top_k = 5\napi_key = 'secret'\n")
    text = print_config(load_settings({"stop": ["a", 'b"\n']}))
    assert f"top_k = 5  # {config_path()}" in text
    assert "# seed is not set" in text
    assert 'model = "smollm2"  # default' in text
    assert "secret" not in text
    shown = tomllib.loads(text)
    assert shown["stop"] == ["a", 'b"\n']
    unset = {f.name for f in table() if getattr(Settings(), f.name) is None} - {"top_k"}
    assert {"seed", "max_tokens", "temperature", "presence_penalty"} <= unset
    assert shown.keys() == {f.name for f in table()} - unset - {"api_key"}


def test_settings_become_sampling_parameters() -> None:
    flags = {"temperature": "0", "seed": "7", "max_tokens": "5", "stop": ["x"]}
    assert load_settings(flags).sampling().params() == SamplingParams(
        temperature=0, seed=7, max_tokens=5, stop=("x",)
    )


def test_what_is_set_comes_before_what_the_models_authors_say() -> None:
    found = load_settings({"temperature": "0.5"})
    own = OwnSampling({"temperature": 1.0, "top_k": 64}, "its authors")
    assert found.sampling(own).params() == SamplingParams(temperature=0.5, top_k=64)
    assert found.sampling(own).words() == (
        "temperature 0.5 (--temperature); top_k 64 (its authors)"
    )
    with pytest.raises(ConfigError, match="top_p must be a number from 0 to 1"):
        load_settings({"top_p": "2"})


def test_what_may_be_done_to_weights_is_nothing_unless_asked_for() -> None:
    assert load_settings().weights_policy() == LoadedWeightsPolicy("off", "exact")
    write_config('requantise = 8\nquant_scales = "float16"\n')
    assert load_settings().weights_policy() == LoadedWeightsPolicy("8", "float16")
    write_config("requantise = 5\n")
    with pytest.raises(ConfigError, match="requantise must be one of off, 8, 4"):
        load_settings()


def test_sampling_settings_start_from_the_same_defaults() -> None:
    assert Settings().sampling() == SamplingDefaults({"stop": ()})
    shared = {f.name for f in fields(SamplingParams)} & {f.name for f in table()}
    assert len(shared) >= 10


@given(st.text(st.characters(codec="utf-8"), max_size=200))
@settings(max_examples=scaled(200), deadline=None)
def test_any_config_file_is_read_or_named(text: str) -> None:
    write_config(text)
    try:
        load_settings()
    except ConfigError as exc:
        assert str(config_path()) in str(exc)


@given(st.floats() | st.integers() | st.booleans() | st.text(max_size=5))
@settings(max_examples=scaled(100))
def test_any_temperature_is_in_range_or_refused(value: object) -> None:
    try:
        found = load_settings({"temperature": value}).temperature
    except ConfigError as exc:
        assert exc.exit_code == 2
    else:
        assert 0 <= found <= 10 and not math.isnan(found)
