"""The messages of a conversation, as values."""

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `sampled_ids` are the tokens the model really produced for an assistant turn
    (without its end-of-turn token); with them the turn renders to exactly what is resident.
    """

    role: Role
    text: str
    sampled_ids: tuple[int, ...] | None = None
