"""The commands that act on the conversation on the screen: what they ask of the person, and what
is chosen then. The acts themselves are in branches.py."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from textual.app import SuspendNotSupported
from textual.screen import Screen

from ds4tui.chat.branching import Node, Tree
from ds4tui.errors import UsageError
from ds4tui.tui import wording
from ds4tui.tui.chat_view import ChatView
from ds4tui.tui.copying import Copyable, copyables
from ds4tui.tui.editor import edited
from ds4tui.tui.prompt import Prompt
from ds4tui.tui.screens.choice import Choice, ChoiceScreen
from ds4tui.tui.terminal_text import pasted
from ds4tui.tui.tuning import tune

Copy = Callable[[str, str], Awaitable[None]]
_ROLES = {"user": "you", "assistant": "answer", "tool": "result", "system": "instructions"}


class ActsHost(Protocol):
    """What is needed of the app."""

    @property
    def chat_view(self) -> ChatView: ...
    async def push_screen_wait(self, screen: Screen[Any]) -> Any: ...
    def notify(self, message: str) -> Any: ...
    async def copy(self, text: str, what: str) -> None: ...
    def suspend(self) -> AbstractContextManager[None]: ...


class Acts:
    """Belongs to the UI loop. Raises StoreError and ConversationWentOn."""

    def __init__(self, host: ActsHost) -> None:
        self._host = host

    async def regenerate(self) -> None:
        await self._host.chat_view.branches.regenerate()

    async def edit(self) -> None:
        place = await self._chosen_question("Edit a question", "brings it into the prompt")
        if place is not None:
            await self._host.chat_view.branches.edit(place)

    async def fork(self) -> None:
        place = await self._chosen_question("Fork before a question", "opens a new conversation")
        if place is not None:
            await self._host.chat_view.branches.fork(place)

    async def choose_branch(self) -> None:
        branches = self._host.chat_view.branches
        found = await branches.tree()
        if found is None or not found.forks:
            self._host.notify(wording.NO_BRANCHES)
            return
        ids, choices, at = _listed(found)
        chosen = await self._host.push_screen_wait(
            ChoiceScreen(wording.tree_title(found.forks + 1), "shows that branch", choices, at)
        )
        if chosen is not None and ids[chosen] not in found.path(found.leaf_id):
            await branches.show_branch(found.newest_end(ids[chosen]))

    async def next_branch(self) -> None:
        branches = self._host.chat_view.branches
        found = await branches.tree()
        beside = found.beside(found.path(found.leaf_id), 1) if found is not None else None
        if beside is None:
            self._host.notify(wording.NO_BRANCHES)
        else:
            await branches.show_branch(beside)

    async def set_system(self, text: str) -> None:
        """Show (no text), remove ("off") or set the system prompt."""
        view = self._host.chat_view
        if not text:
            await view.say(*wording.system_prompt(view.chat.system))
            return
        new = "" if text.lower() == "off" else text
        await view.say(*wording.system_prompt_set(new, await view.branches.set_system(new)))

    async def tune(self) -> None:
        """Show and change sampling and system prompt. Raises ConfigError, too."""
        await tune(self._host)

    async def think(self, word: str) -> None:
        """Say how it is, show or hide what is thought, or have the model think (`on`), not (`off`)
        or as it was made (`auto`) from the next question on. Raises UsageError."""
        view = self._host.chat_view
        switches = {"on": True, "off": False, "auto": None}
        match word.lower():
            case "":
                await view.say(*wording.thinking(view.chat.thinking, self._without_switch))
            case "show" | "hide" as chosen:
                view.show_thoughts(chosen == "show")
                self._host.notify(wording.thoughts_shown(chosen == "show"))
            case "on" | "off" | "auto" as chosen:
                await self._switch_thinking(switches[chosen])
            case _:
                raise UsageError(
                    f"/think does not know {word[:40]!r}.",
                    "It takes on, off, auto, show or hide.",
                )

    async def _switch_thinking(self, wanted: bool | None) -> None:
        view = self._host.chat_view
        if wanted is not None and self._without_switch:
            raise UsageError(wording.no_switch(self._without_switch))
        cost = None
        if view.chat.path and wanted is not view.chat.thinking:
            cost = await view.branches.forecast(replace(view.chat, thinking=wanted))
        view.chat.thinking = wanted
        self._host.notify(wording.thinking_set(wanted, wording.forecast_words(cost)))

    @property
    def _without_switch(self) -> str:
        """The open model, if its template has no switch for thinking."""
        assistant = self._host.chat_view.assistant
        has_switch = assistant is None or assistant.format.abilities.thinking_switch
        return "" if assistant is None or has_switch else assistant.info.name

    async def edit_outside(self) -> None:
        """Write the prompt in the person's own editor. Raises UsageError."""
        prompt = self._host.chat_view.query_one(Prompt)
        before = prompt.text
        try:
            # The loop stands still meanwhile: the terminal is the editor's.
            with self._host.suspend():
                written = edited(before)
        except SuspendNotSupported as exc:
            raise UsageError("This terminal cannot be lent to an editor.", "Write here.") from exc
        finally:
            prompt.focus()
        if written != before:
            prompt.put(pasted(written))

    async def copy(self) -> None:
        found = copyables(self._host.chat_view.chat.path)
        if not found:
            self._host.notify(wording.NOTHING_TO_COPY)
            return
        choices = [Choice(each.what.removeprefix("The "), each.text) for each in found]
        chosen = await self._host.push_screen_wait(ChoiceScreen("Copy", "copies", choices))
        if chosen is not None:
            await self._copy(found[chosen])

    async def _copy(self, chosen: Copyable) -> None:
        await self._host.copy(chosen.text, chosen.what)

    async def _chosen_question(self, title: str, verb: str) -> int | None:
        """The place of one of the person's questions, the newest offered first."""
        chat = self._host.chat_view.chat
        places = chat.questions[::-1]
        if not places:
            self._host.notify(wording.NOTHING_ASKED)
            return None
        count = len(places)
        choices = [
            Choice(f"{count - at}", chat.path[place].message.text or "(pictures)")
            for at, place in enumerate(places)
        ]
        chosen = await self._host.push_screen_wait(ChoiceScreen(title, verb, choices))
        return None if chosen is None else places[chosen]


def _listed(found: Tree) -> tuple[Sequence[int], Sequence[Choice], int]:
    """The messages of a tree as they are listed, each branch below the one beside it; their ids,
    and the place of the end of what is shown."""
    ids: list[int] = []
    choices: list[Choice] = []
    shown = set(found.path(found.leaf_id))
    waiting = [(id_, 0) for id_ in reversed(found.children.get(None, ()))]
    while waiting:
        id_, depth = waiting.pop()
        ids.append(id_)
        choices.append(
            Choice(_about(found, found.nodes[id_], depth, id_ in shown), _words(found, id_))
        )
        below = found.children.get(id_, ())
        waiting += [(each, depth + (len(below) > 1)) for each in reversed(below)]
    at = ids.index(found.leaf_id) if found.leaf_id in ids else 0
    return ids, choices, at


def _about(found: Tree, node: Node, depth: int, is_shown: bool) -> str:
    mark = wording.mark(*found.place(node.id))
    role = _ROLES.get(node.role, node.role)
    parts = ("● " if is_shown else "○ ", "│ " * depth, f"{mark} " if mark else "", role)
    return "".join(parts)


def _words(found: Tree, id_: int) -> str:
    return found.nodes[id_].words or "(no words)"
