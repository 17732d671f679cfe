"""Conversations as agents and people have them, to count what a server evaluates again.

Each session is a function that asks its server by `ask(messages, reply)`: messages in OpenAI's
form, `reply` the assistant message that a scripted model says then (a real model says its own);
it returns the assistant message that came back. What clients do to histories is done here: white
space at the end changed, keys of arguments in another order, thinking dropped, early messages
edited, side requests between, and returns to what was left.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

Json = dict[str, Any]
Ask = Callable[[Sequence[Json], Json], Json]

_NOUNS = "buffer cache client error file index lock page queue reader server token".split()
_VERBS = "opens reads closes checks holds moves keeps drops counts writes".split()
_WHERE = ["at the start", "behind the lock", "in the loop", "on every call", "before the test"]

TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {k: {"type": "string"} for k in keys}},
        },
    }
    for name, description, keys in (
        ("read_file", "Read a file of the project.", ("path", "from_line", "to_line")),
        ("search", "Find a text in all files.", ("query", "glob")),
        ("edit", "Replace a text that occurs once.", ("path", "old", "new")),
        ("shell", "Run a command and get what it prints.", ("command", "timeout_s")),
    )
]


class Words:
    """Prose and code that look like themselves, the same every time."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def sentence(self) -> str:
        pick = self._draw.choice
        first, second = pick(_NOUNS), pick(_NOUNS)
        number = self._draw.randrange(10_000)
        return f"The {first} {pick(_VERBS)} the {second} {pick(_WHERE)} ({number})."

    def text(self, sentences: int) -> str:
        return " ".join(self.sentence() for _ in range(sentences))

    def code(self, lines: int) -> str:
        pick = self._draw.choice
        return "\n".join(
            f"    {pick(_NOUNS)}_{n} = {pick(_VERBS)}({pick(_NOUNS)}, {self._draw.randrange(100)})"
            for n in range(lines)
        )


def system(words: Words, sentences: int) -> Json:
    return {"role": "system", "content": "You are a careful engineer. " + words.text(sentences)}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def said(text: str, thinking: str = "", calls: Sequence[Json] = ()) -> Json:
    message: Json = {"role": "assistant", "content": text}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(number: int, name: str, **arguments: str) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def result(number: int, text: str) -> Json:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def results(reply: Json, text: str) -> list[Json]:
    """What the client did for the calls of `reply`; for a reply that calls nothing, a person
    pastes it."""
    calls = reply.get("tool_calls") or ()
    if not calls:
        return [user(f"This is what it printed:\n{text}")]
    return [{"role": "tool", "tool_call_id": c["id"], "content": text} for c in calls]


def reserialised(reply: Json) -> Json:
    """As a client that took the reply apart writes it again."""
    again = {k: v for k, v in reply.items() if k not in ("reasoning_content", "refusal")}
    again["content"] = (reply.get("content") or "").rstrip() + "\n"
    if calls := reply.get("tool_calls"):
        again["tool_calls"] = [_reordered(c) for c in calls]
    return again


def _reordered(tool_call: Json) -> Json:
    function = tool_call["function"]
    arguments = json.loads(function["arguments"])
    turned = dict(reversed(list(arguments.items()))) if isinstance(arguments, dict) else arguments
    text = json.dumps(turned, indent=1)
    return {**tool_call, "function": {"name": function["name"], "arguments": text}}


def coding_agent(ask: Ask) -> None:
    """Ten steps with tools: every third reply comes back re-serialised, a side request names the
    conversation, the first message is edited at the end, and then the old branch goes on."""
    words = Words(1)
    head = [system(words, 60), user("Find out why the tests hang. " + words.text(4))]
    history = list(head)
    for step in range(10):
        reads = call(step, "read_file", path=f"src/part_{step}.py", from_line="1", to_line="40")
        reply = ask(history, said(words.text(2), words.text(3), [reads]))
        kept = reserialised(reply) if step % 3 == 2 else reply
        history = [*history, kept, *results(reply, words.code(24))]
        if step in (0, 5):
            ask([user("Name this conversation in four words:\n" + words.text(6))], said("A name."))
    ask(history, said(words.text(4)))
    edited = [head[0], user("Find out why the tests are slow. " + words.text(4))]
    reply = ask(edited, said(words.text(3)))
    ask([*edited, reply, user("Go on. " + words.text(1))], said(words.text(3)))
    ask([*history, user("Back to the first question. " + words.text(1))], said(words.text(3)))


def person(ask: Ask) -> None:
    """A chat of eight turns; then a reply is asked for again, a message in the middle is edited,
    both branches go on, and the thinking of all replies is left out by the client."""
    words = Words(2)
    history: list[Json] = [system(words, 12)]
    for _ in range(8):
        history.append(user(words.text(3)))
        history.append(ask(history, said(words.text(6), words.text(4))))
    ask(history[:-1], said(words.text(6)))
    fork = [*history[:7], user("No: " + words.text(2))]
    fork.append(ask(fork, said(words.text(5))))
    for branch in (history, fork, history):
        branch.append(user(words.text(2)))
        branch.append(ask(branch, said(words.text(3))))
    plain = [reserialised(m) if m["role"] == "assistant" else m for m in history]
    ask([*plain, user(words.text(1))], said(words.text(2)))


def two_agents(ask: Ask) -> None:
    """Two agents with one system prompt by turns, and the second looks at much less."""
    words = Words(3)
    shared = system(words, 80)
    long: list[Json] = [shared, user("Review all files. " + words.text(3))]
    short: list[Json] = [shared, user("Watch the build. " + words.text(1))]
    for step in range(6):
        searches = call(step, "search", query=f"word {step}", glob="*.py")
        reply = ask(long, said(words.text(1), calls=[searches]))
        long += [reply, *results(reply, words.code(30))]
        reply = ask(short, said(words.text(1)))
        short += [reply, user(words.text(1))]
    ask(long, said(words.text(3)))


def system_in_the_middle(ask: Ask) -> None:
    """A client that puts reminders between the turns, and takes the last one away again."""
    words = Words(4)
    history: list[Json] = [system(words, 20)]
    for step in range(6):
        history.append(user(words.text(2)))
        reminder = {"role": "system", "content": f"Reminder: step {step}. " + words.text(1)}
        reply = ask([*history, reminder], said(words.text(4), words.text(2)))
        history.append(reserialised(reply))


SESSIONS: dict[str, Callable[[Ask], None]] = {
    "coding agent": coding_agent,
    "person": person,
    "two agents": two_agents,
    "reminders": system_in_the_middle,
}
