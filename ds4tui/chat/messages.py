"""The messages of a conversation, as values."""

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What an assistant asks a tool for. `arguments` is JSON text of an object, as
    `tools.canonical_arguments` writes it; its keys keep the order in which they came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """What a model may call. `parameters` is JSON text of a JSON Schema."""

    name: str
    description: str
    parameters: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `sampled_ids` are the tokens the model really produced for an assistant turn
    (without its end-of-turn token); with them the turn renders to exactly what is resident:
    they hold its reasoning and tool calls too.

    `reasoning` and `tool_calls` belong to assistant turns, beside the visible `text`;
    `tool_call_id` and `name` (of the tool) to a tool's result, which is the `text`.
    """

    role: Role
    text: str
    sampled_ids: tuple[int, ...] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
