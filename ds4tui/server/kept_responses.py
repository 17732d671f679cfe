"""Responses that later requests go on from (`previous_response_id`), until this server stops.

Bounded by number and by the size of what they say: what went is a clear 404, and the client
sends its whole conversation instead.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ds4tui.chat.messages import Message
from ds4tui.server.errors import ApiError

if TYPE_CHECKING:  # they need the service, which holds these
    from ds4tui.server.reply import Reply
    from ds4tui.server.responses_reply import Keep

RESPONSES_MAX = 512
BYTES_MAX = 64 * 2**20  # of texts and images, those that several share counted for each


@dataclass(frozen=True, slots=True)
class _Kept:
    messages: tuple[Message, ...]
    response: dict[str, Any]
    nbytes: int


class KeptResponses:
    """Thread-safe."""

    def __init__(self, most: int = RESPONSES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._most, self._bytes_max = most, bytes_max
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def keeping(self, messages: Sequence[Message]) -> "Keep":
        """Keeps the response to `messages` once it is there."""

        def keep(name: str, reply: "Reply", response: dict[str, Any]) -> None:
            said = Message(
                "assistant", reply.text, reasoning=reply.reasoning, tool_calls=reply.calls
            )
            self._put(name, (*messages, said), response)

        return keep

    def messages(self, name: str) -> tuple[Message, ...]:
        """What was said up to the end of a response. Raises ApiError (404)."""
        return self._found(name, "previous_response_id").messages

    def response(self, name: str) -> dict[str, Any]:
        """Raises ApiError (404)."""
        return self._found(name, "response_id").response

    def remove(self, name: str) -> None:
        """Raises ApiError (404)."""
        with self._lock:
            kept = self._kept.pop(name, None)
            self._nbytes -= kept.nbytes if kept is not None else 0
        if kept is None:
            raise _unknown(name, "response_id")

    def _put(self, name: str, messages: tuple[Message, ...], response: dict[str, Any]) -> None:
        nbytes = sum(map(_nbytes, messages))
        with self._lock:
            self._kept[name] = _Kept(messages, response, nbytes)
            self._nbytes += nbytes
            while len(self._kept) > self._most or self._nbytes > self._bytes_max:
                _, gone = self._kept.popitem(last=False)
                self._nbytes -= gone.nbytes

    def _found(self, name: str, param: str) -> _Kept:
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None:
                self._kept.move_to_end(name)
        if kept is None:
            raise _unknown(name, param)
        return kept


def _nbytes(message: Message) -> int:
    calls = sum(len(call.arguments) for call in message.tool_calls)
    images = sum(len(image.data) for image in message.images)
    return len(message.text) + len(message.reasoning) + calls + images


def _unknown(name: str, param: str) -> ApiError:
    return ApiError(
        404,
        f"There is no response {name[:80]!r} here (any more).",
        code="response_not_found",
        param=param,
        hint="Send the whole conversation as input.",
    )
