"""What a stream that is silent for long says, so that nobody takes it for dead.

    usual    comment lines, but events where a dialect has one for this (Anthropic's ping), and for
             clients that are known to count events only
    comment  comment lines always
    event    an event of the dialect that says nothing new
    none     nothing

Some clients count comments as life, others only events; some break on events that say nothing,
others on comments: so it can be told for each, by how its User-Agent begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from ds4tui.errors import ConfigError

Style = Literal["usual", "comment", "event", "none"]
STYLES: tuple[str, ...] = get_args(Style)

# Codex drops a stream that had no event for five minutes, whatever comments came.
_KNOWN: Mapping[str, Style] = {"codex": "event"}


@dataclass(frozen=True, slots=True)
class KeepAlives:
    """`clients` are styles by the beginning of a User-Agent, in lower case."""

    style: Style = "usual"
    clients: Mapping[str, Style] = field(default_factory=dict)

    @classmethod
    def of(cls, style: str, clients: Sequence[str]) -> "KeepAlives":
        """`clients` as NAME=STYLE. Raises ConfigError."""
        return cls(cast(Style, style), dict(map(_client, clients)))

    def style_for(self, user_agent: str) -> Style:
        """The person's word for this client, else for all, else what is known of it."""
        agent = user_agent.lower()
        named = _longest(self.clients, agent) or self.style
        return named if named != "usual" else _longest(_KNOWN, agent) or "usual"


def _longest(styles: Mapping[str, Style], agent: str) -> Style | None:
    found = [name for name in styles if agent.startswith(name)]
    return styles[max(found, key=len)] if found else None


def _client(text: str) -> tuple[str, Style]:
    name, _, style = text.rpartition("=")
    if not name.strip() or style.strip() not in STYLES:
        raise ConfigError(
            f"server_keep_alive_clients must be of the form NAME=STYLE, not {text[:80]!r}.",
            f"The styles are {', '.join(STYLES)}; NAME is how the client's User-Agent begins.",
        )
    return name.strip().lower(), cast(Style, style.strip())
