"""Settings: what they are, where they come from, and what is wrong with one that is wrong.

Strongest first: flags, DS4TUI_* variables, state.toml, config.toml, defaults. config.toml is the
person's own and is never written here; state.toml holds what the app changed. The fields of
`Settings` are the one table: names, types, defaults, ranges, help; flags, variables, both files,
`--print-config` and the README are read off it. Imports nothing that a quick command must not.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import platformdirs
import tomli_w

from ds4tui.config_files import locked, parsed, place
from ds4tui.config_values import (
    LIMITLESS,
    checked_value,
    from_text,
    setting,
    size_bytes,
    toml_value,
)
from ds4tui.config_values import (
    expected as expected,  # read by whoever tells of the settings
)
from ds4tui.errors import ConfigError
from ds4tui.files import write_atomically

if TYPE_CHECKING:
    from ds4tui.chat.rendering import ThinkingInHistory
    from ds4tui.engine.sampling_defaults import OwnSampling, SamplingDefaults
    from ds4tui.kernels.policy import LoadedWeightsPolicy

APP = "ds4tui"
ENV_PREFIX = "DS4TUI_"

# Variables that are not settings: where the settings are, and switches of tests and debugging.
OTHER_VARIABLES = {
    "DS4TUI_CONFIG_DIR": "the folder of config.toml",
    "DS4TUI_STATE_DIR": "the folder of state.toml and of the log",
    "DS4TUI_CACHE_DIR": "the folder of what can be made again: kernels compiled for this machine",
    "DS4TUI_DEBUG": "1 checks the session's invariants at every step",
    "DS4TUI_DEV_MODELS": "the folder of more models for the tests: see tools/dev_models.py",
    "DS4TUI_REPORT_WORDS": "1 puts into crash reports and the log what exceptions say, which may "
    "hold what was written",
    "DS4TUI_KERNELS": "which kernel twin is used: see `ds4tui doctor`",
    "DS4TUI_TEST_SCALE": "scales the long random tests",
}

# Tables of config.toml that are no settings: whoever uses one checks it.
OTHER_TABLES = ("keys",)

_USUAL = Path()  # stands for the platform's own folder until the settings are loaded


@dataclass(frozen=True)
class Settings:
    """What is in force. None means not set. `sources` says where each value came from."""

    model: str = setting("smollm2", "the model that opens when -m is not given")
    system: str = setting("", "the system prompt of new conversations; empty: the model's own")
    temperature: float | None = setting(
        None, "randomness of the choice of tokens; 0 is greedy; unset: the model's own", 0, 10
    )
    top_p: float | None = setting(
        None,
        "keep the likeliest tokens up to this probability in all; unset: the model's own",
        0,
        1,
    )
    top_k: int | None = setting(
        None, "keep this many likeliest tokens; 0 keeps all; unset: the model's own", 0, LIMITLESS
    )
    min_p: float | None = setting(
        None, "drop tokens below this share of the likeliest one's; unset: the model's own", 0, 1
    )
    repetition_penalty: float | None = setting(
        None, "above 1 discourages repeats; 1 is off; unset: the model's own", 0.01, 10
    )
    frequency_penalty: float | None = setting(
        None, "OpenAI's: per occurrence in the reply; unset: the model's own", -2, 2
    )
    presence_penalty: float | None = setting(
        None, "OpenAI's: once per token in the reply; unset: the model's own", -2, 2
    )
    seed: int | None = setting(None, "same seed, same reply; unset: drawn anew", 0, 2**63 - 1)
    max_tokens: int | None = setting(
        None, "longest reply; unset: to the context's end", 1, LIMITLESS
    )
    stop: tuple[str, ...] = setting((), "strings that end a reply")
    context_tokens: int = setting(0, "context size; 0: the model's own", 0, LIMITLESS)
    prefill_chunk_tokens: int = setting(512, "prompt tokens evaluated in one step", 32, 4096)
    sessions: int = setting(
        1,
        "conversations at work at the same time, each with a live KV state; with 1 they take "
        "turns, and one that is left is parked in memory, so coming back to it costs nothing",
        1,
        64,
    )
    mmproj: str = setting(
        "",
        "the file of the model's image encoder, or none; unset: the one beside the model that "
        "fits it, or, for smollm2, the screen reader that comes with ds4tui",
    )
    images_kept: int = setting(
        0,
        "of a conversation at most so many images, the last ones, are shown to the model; earlier "
        "ones are left out by half of that at a time, since what follows is computed again; 0: all",
        0,
        LIMITLESS,
    )
    requantise: str = setting(
        "off",
        "on a GPU: bits that types without an exact form in MLX (Q2_K, Q3_K, Q6_K, IQ..) are "
        "quantised to anew; off keeps their values, which take 16 bits",
        choices=("off", "8", "4"),
    )
    quant_scales: str = setting(
        "exact",
        "on a GPU: float16 rounds the scales of Q4_K and Q5_K to 11 bits, which saves 1 bit a "
        "weight and makes products 2 to 5 times faster (measured on an H200)",
        choices=("exact", "float16"),
    )
    expert_cache: str = setting(
        "",
        "bytes of a mixture's experts that are held where MLX computes, as 8GiB; the others are "
        "copied from the file when a token picks them; 0 holds all; unset: what the memory allows, "
        "if not all fit",
        is_size=True,
    )
    thinking_in_history: str = setting(
        "keep",
        "reasoning of earlier replies: keep has it as the model wrote it, so that nothing is "
        "computed again; template as the chat template wishes (many leave it out, and what follows "
        "is computed again); drop leaves it out everywhere",
        choices=("keep", "template", "drop"),
    )
    kv_disk: str = setting(
        "on",
        "on: conversations' KV states are kept on disk, so that after a restart, or when memory "
        "was needed for others, they go on without being evaluated again",
        choices=("on", "off"),
    )
    kv_disk_dir: Path = setting(_USUAL, "folder of the KV states; unset: kv in data_dir")  # noqa: RUF009
    kv_disk_budget: str = setting(
        "",
        "bytes that the folder may take in all, as 20GB; unset: a tenth of the disk's free space, "
        "at most 20 GB",
        is_size=True,
    )
    host: str = setting("127.0.0.1", "address that the server listens on")
    port: int = setting(8484, "port that the server listens on; 0: any free one", 0, 65535)
    api_key: str = setting("", "key that clients of the server must send; empty: none")
    server_keep_alive: str = setting(
        "usual",
        "what a stream says while a long prompt is evaluated: usual is comment lines, events where "
        "the API has one for it or the client is known to count nothing else",
        choices=("usual", "comment", "event", "none"),
    )
    server_keep_alive_clients: tuple[str, ...] = setting(
        (), "the same for single clients, as NAME=STYLE: NAME is how their User-Agent begins"
    )
    agents_in_list: str = setting(
        "on",
        "off: the list of conversations begins without those in which agents alone wrote; F3 in "
        "it shows them",
        choices=("on", "off"),
    )
    theme: str = setting("textual-dark", "colour theme of the app")
    log_level: str = setting(
        "info", "what the log file holds", choices=("debug", "info", "warning", "error")
    )
    data_dir: Path = setting(_USUAL, "folder of models and conversations")  # noqa: RUF009
    sources: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )

    @property
    def lists_agents(self) -> bool:
        return self.agents_in_list == "on"

    def sampling(self, own: "OwnSampling | None" = None) -> "SamplingDefaults":
        """What requests get that leave parameters open; `own` is the model's."""
        from ds4tui.engine.requests import SamplingParams  # brings numpy
        from ds4tui.engine.sampling_defaults import OwnSampling, SamplingDefaults

        names = {f.name for f in fields(SamplingParams)} & _BY_NAME.keys()
        chosen = {name: getattr(self, name) for name in names}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        return SamplingDefaults(chosen, own or OwnSampling(), self.sources)

    def thinking_wish(self) -> "ThinkingInHistory":
        return cast("ThinkingInHistory", self.thinking_in_history)

    def weights_policy(self) -> "LoadedWeightsPolicy":
        from ds4tui.kernels.policy import LoadedWeightsPolicy

        requantise, scales = cast(Any, self.requantise), cast(Any, self.quant_scales)
        return LoadedWeightsPolicy(requantise=requantise, scales=scales)

    @property
    def expert_cache_bytes(self) -> int | None:
        """None: what the memory allows, if not all experts fit."""
        return size_bytes(self.expert_cache) if self.expert_cache else None

    @property
    def models_dir(self) -> Path:
        return self.data_dir / "models"

    @property
    def kv_dir(self) -> Path:
        return self.kv_disk_dir if self.kv_disk_dir.parts else self.data_dir / "kv"

    @property
    def replies_path(self) -> Path:
        """Beside the folder of the KV states, whose budget is for these alone."""
        return Path(f"{self.kv_dir}-sampled.sqlite3")

    @property
    def kv_budget_bytes(self) -> int | None:
        """None: a share of what is free."""
        return size_bytes(self.kv_disk_budget) if self.kv_disk_budget else None

    @property
    def database_path(self) -> Path:
        return self.data_dir / "conversations.sqlite3"


def table() -> tuple[Field[Any], ...]:
    """The settings, in the order in which they are shown."""
    return tuple(f for f in fields(Settings) if f.metadata)


_BY_NAME = {f.name: f for f in table()}


def config_path() -> Path:
    return _folder("DS4TUI_CONFIG_DIR", platformdirs.user_config_path) / "config.toml"


def state_path() -> Path:
    return _folder("DS4TUI_STATE_DIR", platformdirs.user_state_path) / "state.toml"


def log_path() -> Path:
    return _folder("DS4TUI_STATE_DIR", platformdirs.user_log_path) / "ds4tui.log"


def _folder(variable: str, usual: Callable[..., Path]) -> Path:
    moved = os.environ.get(variable)
    return Path(moved).expanduser() if moved else usual(APP, appauthor=False)


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings in force. `flags` are given ones only: text, or values of the right type.

    Raises ConfigError naming the file and line, the variable or the flag that is wrong.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    layers = (
        _from_file(config_path()),
        _from_file(state_path()),
        _from_environment(os.environ),
        _from_flags(flags or {}),
    )
    for layer in layers:
        for name, value, source in layer:
            values[name], sources[name] = value, source
    if not values.get("data_dir", _USUAL).parts:
        values["data_dir"] = platformdirs.user_data_path(APP, appauthor=False)
    return Settings(**values, sources=MappingProxyType(sources))


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """One sentence for each DS4TUI_* variable that nothing reads."""
    known = {variable_of(name) for name in _BY_NAME} | OTHER_VARIABLES.keys()
    return [
        f"{name} is not a variable that ds4tui reads{_near(name, known)}."
        for name in sorted(environment)
        if name.startswith(ENV_PREFIX) and name not in known
    ]


def own_keys() -> Any:
    """`[keys]` of config.toml as it stands there, unchecked. Raises ConfigError for the file."""
    return parsed(config_path()).get("keys", {})


def save_state(**changes: Any) -> None:
    """Keep what the app changed, in state.toml; None forgets a key.

    Raises ConfigError for a value that could not be read back, or if the file cannot be written.
    """
    path = state_path()
    for name, value in changes.items():
        f = _known(name)
        if value is not None:
            checked_value(f, toml_value(value))
    try:
        with locked(path):
            state = {**parsed(path), **{k: toml_value(v) for k, v in changes.items()}}
            kept = {name: value for name, value in state.items() if value is not None}
            write_atomically(path, tomli_w.dumps(kept).encode())
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc.strerror}.") from exc


def print_config(settings: Settings) -> str:
    """Every value in force and where it came from, as TOML that config.toml could hold."""
    lines = [f"# {config_path()} is yours; {state_path()} is the app's own"]
    for f in table():
        value = getattr(settings, f.name)
        source = settings.sources.get(f.name, "default")
        if value is None:
            lines.append(f"# {f.name} is not set")
        elif f.name == "api_key" and value:
            lines.append(f"# api_key is set and not shown  # {source}")
        else:
            text = tomli_w.dumps({f.name: toml_value(value)}).strip()
            lines.append(f"{text}  # {source}")
    if keys := own_keys():
        lines += ["", tomli_w.dumps({"keys": keys}).strip()]
    return "\n".join(lines) + "\n"


def variable_of(name: str) -> str:
    return ENV_PREFIX + name.upper()


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


# --- layers: (name, checked value, source) ---

Layer = Iterator[tuple[str, Any, str]]


def _from_file(path: Path) -> Layer:
    for name, value in parsed(path).items():
        if name in OTHER_TABLES:
            continue
        with _naming(partial(place, path, name)):
            checked = checked_value(_known(name), value)
        yield name, checked, str(path)


def _from_environment(environment: Mapping[str, str]) -> Layer:
    for f in table():
        variable = variable_of(f.name)
        if text := environment.get(variable):  # an empty variable is an unset one
            with _naming(partial(str, variable)):
                checked = checked_value(f, from_text(f, text))
            yield f.name, checked, variable


def _from_flags(flags: Mapping[str, Any]) -> Layer:
    for name, value in flags.items():
        flag = flag_of(name)
        with _naming(partial(str, flag)):
            f = _known(name)
            plain = from_text(f, value) if isinstance(value, str) else toml_value(value)
            checked = checked_value(f, plain)
        yield name, checked, flag


@contextmanager
def _naming(where: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except ConfigError as exc:
        raise ConfigError(f"{where()}: {exc.message}", exc.hint) from None


def _known(name: str) -> Field[Any]:
    if name not in _BY_NAME:
        raise ConfigError(f"there is no setting {name!r}{_near(name, _BY_NAME)}.")
    return _BY_NAME[name]


def _near(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""
