"""What agent clients really sent, sent again: each later turn evaluates only what is new.

`agents/*.json` are requests of Codex 0.171, opencode 1.18 and Claude Code 2.1.197 of npm,
recorded in front of this server while its engine said prepared replies: a few of their tools, long
texts cut off, names of the machine replaced. `as_before` are fields that were as in the request
before.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ds4tui.assistant import Assistant
from ds4tui.chat.rendering import ChatFormat
from tests.chat import formats
from tests.fakes import FakeEngine, FakeJob, fake_info
from tests.server.conftest import Running

FOLDER = Path(__file__).parent / "agents"
# Which of the requests begin a conversation: opencode asks for a title first.
BEGINNINGS = {"codex": {0}, "opencode": {0, 1}, "claude_code": {0}}
_CALL_ID = re.compile(r"call_[0-9a-f]{24}")


class ScriptedEngine(FakeEngine):
    """Says the `replies` one after the other, not in the tokens that the template would take."""

    def __init__(self, replies: Iterator[str], tokenizer: Any, end_id: int) -> None:
        super().__init__(context_tokens=100_000, chunk_tokens=4096, model="tiny")
        self._replies, self._real, self._end_id = replies, tokenizer, end_id

    def _decode(self, job: FakeJob, shown: list[int]) -> tuple[Any, str | None]:
        for count, token in enumerate(self._real.encode(next(self._replies)), start=1):
            shown.append(token)
            self._tell_token(job, count, 0.0, self._real.token_bytes(token).decode(), token)
            self._live = self._live.extended([token])
        self._tell_token(job, len(shown) + 1, 0.0, "", self._end_id)
        return "stop", None


@dataclass(frozen=True)
class Answered:
    prompt: int
    kept: int
    evaluated: int
    completion: int
    kind: str


class ScriptedAssistant(Assistant):
    def __init__(self, replies: Iterator[str], folder: Path) -> None:
        made = ChatFormat(formats.tokenizer(folder), formats.HERMES)
        self.engine = ScriptedEngine(replies, made.tokenizer, formats.ID["<|im_end|>"])
        super().__init__(fake_info(100_000, "tiny"), self.engine, made)


class Client:
    """Sends recorded requests; calls get the ids that this server gave them."""

    def __init__(self, name: str, folder: Path) -> None:
        recorded = json.loads((FOLDER / f"{name}.json").read_text())
        self.path, self.headers = recorded["path"], recorded["headers"]
        self.requests = recorded["requests"]
        replies = iter([each["reply"] for each in self.requests])
        self.assistant = ScriptedAssistant(replies, folder)
        self._known: dict[str, str] = {}
        self._given: list[str] = []

    def bodies(self) -> Iterator[dict[str, Any]]:
        before: dict[str, Any] = {}
        for each in self.requests:
            before = {**{key: before[key] for key in each["as_before"]}, **each["fields"]}
            yield {**before, "model": "tiny"}

    def send(self, running: Running, body: dict[str, Any]) -> bytes:
        text = json.dumps(body)
        for recorded in dict.fromkeys(_CALL_ID.findall(text)):
            if recorded not in self._known:
                self._known[recorded] = self._given[len(self._known)]
        text = _CALL_ID.sub(lambda found: self._known[found[0]], text)
        answer = running.post(self.path, text.encode(), headers=self.headers)
        assert answer.status == 200, answer.body
        found = _CALL_ID.findall(answer.body.decode())
        self._given += [each for each in dict.fromkeys(found) if each not in self._given]
        return answer.body


def answered(running: Running) -> Answered:
    stats = running.assistant.stats
    usage, decision = stats.usage, stats.decision
    return Answered(
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.evaluated_tokens,
        usage.completion_tokens,
        decision.kind,
    )


@pytest.mark.parametrize("name", sorted(BEGINNINGS))
def test_later_turns_evaluate_only_what_is_new(
    name: str, serve: Callable[..., Running], tmp_path: Path
) -> None:
    client = Client(name, tmp_path)
    running = serve(client.assistant)
    before: Answered | None = None
    for number, body in enumerate(client.bodies()):
        client.send(running, body)
        now = answered(running)
        if number not in BEGINNINGS[name]:
            assert before is not None
            resident = before.prompt + before.completion - 1
            told = f"{name}, request {number}: {now} after {before}"
            assert (now.kind, now.kept) == ("extend", resident), told
            assert now.evaluated == now.prompt - resident, told
        before = now
    assert before is not None and before.evaluated < 0.2 * before.prompt


@pytest.mark.parametrize("name", sorted(BEGINNINGS))
def test_the_tools_that_clients_offer_reach_the_model(
    name: str, serve: Callable[..., Running], tmp_path: Path
) -> None:
    client = Client(name, tmp_path)
    running = serve(client.assistant)
    body = list(client.bodies())[-1 if name != "opencode" else 1]
    client._given = [f"call_{number:024x}" for number in range(20)]
    client.send(running, body)
    [prompt] = running.prompts
    for tool in body["tools"]:
        for each in tool.get("tools", [tool]):
            spelt = each.get("name") or each.get("function", {}).get("name")
            assert spelt is None or spelt in prompt
