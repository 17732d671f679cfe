"""What the commands of the one table do in the plain mode, by their names.

A command of the table that is not here is about the screen, and says so.
"""

from pathlib import Path
from typing import Any, cast

from ds4tui.chat.branching import Tree
from ds4tui.chat.transfer import added, from_openai
from ds4tui.errors import Ds4Error, UsageError
from ds4tui.pictures.folder import newest_screenshots
from ds4tui.pictures.paths import quoted
from ds4tui.plain import telling
from ds4tui.plain.chat import Act, PlainChat
from ds4tui.tui import commands, wording
from ds4tui.tui.background import in_thread
from ds4tui.tui.clipboard import copy_with_tool
from ds4tui.tui.commands import Command
from ds4tui.tui.conversations import LISTED_CONVERSATIONS, exported
from ds4tui.tui.copying import copyables
from ds4tui.tui.editor import edited
from ds4tui.tui.terminal_text import one_line, pasted
from ds4tui.tui.tuning import NAMES, checked, usual_values
from ds4tui.tui.words import counted, cut

LISTED_CHARS = 100


def _first_words(text: str) -> str:
    return cut(one_line(text), LISTED_CHARS) or "(pictures)"


# Conversations


async def resume(host: PlainChat, text: str) -> None:
    hides = not host.settings.lists_agents and text != "all"
    found = await host.journal.ask(lambda store: store.list(LISTED_CONVERSATIONS, by_persons=hides))
    if hides:
        host.lines.say("/resume all lists those of agents, too.")
    if not found:
        host.lines.say("There are no conversations yet.")
        return
    choices = [
        f"{_first_words(each.title)}, {counted(each.messages, 'message')}"
        + (f", by {one_line(each.client)}" if each.client else "")
        for each in found
    ]
    chosen = host.chosen("Conversations, the newest first:", choices)
    if chosen is not None:
        await host.open_conversation(found[chosen].id)
        host.lines.say(telling.cost(await host.branches.forecast(host.chat)))


async def export(host: PlainChat, name: str) -> None:
    chat_id = host.chat.id
    if chat_id is None:
        host.lines.say(wording.NOTHING_ASKED)
        return
    chat = await host.journal.ask(lambda store: store.load(chat_id))
    try:
        path = await in_thread("ds4tui-export", lambda: exported(chat, name))
    except OSError as exc:
        raise UsageError(f"{exc.filename}: {exc.strerror}.", "Choose another path.") from exc
    host.lines.say(wording.exported(path, len(chat.path)))


async def take_in(host: PlainChat, name: str) -> None:
    if not name:
        raise UsageError("/import needs the path of a file.", "/import PATH.json takes it in.")
    path = Path(name.strip("'\"")).expanduser()
    try:
        text = await in_thread(
            "ds4tui-import", lambda: path.read_text(encoding="utf-8", errors="replace")
        )
    except OSError as exc:
        raise UsageError(f"{exc.filename}: {exc.strerror}.", "Choose another path.") from exc
    chat = await in_thread("ds4tui-import", lambda: from_openai(text))
    new = await host.journal.ask(lambda store: added(store, chat))
    await host.open_conversation(new)
    host.lines.say(wording.taken_in(len(chat.messages)))


# Branches


def _chosen_question(host: PlainChat, title: str) -> int | None:
    """The place in the path of one of the person's questions."""
    places = host.chat.questions[::-1]
    if not places:
        host.lines.say(wording.NOTHING_ASKED)
        return None
    chosen = host.chosen(title, [_first_words(host.chat.path[at].message.text) for at in places])
    return None if chosen is None else places[chosen]


async def edit(host: PlainChat, text: str) -> None:
    place = _chosen_question(host, "Questions to ask anew, the newest first:")
    if place is not None:
        await host.branches.edit(place)
        told = host.branches.editing.replace(" · ", ", ")
        host.lines.say(f"{told}. Your next message is asked in its place.")


async def fork(host: PlainChat, text: str) -> None:
    place = _chosen_question(host, "Fork before a question, the newest first:")
    if place is not None:
        await host.branches.fork(place)


async def tree(host: PlainChat, text: str) -> None:
    found = await host.branches.tree()
    if found is None or not found.forks:
        host.lines.say(wording.NO_BRANCHES)
        return
    ends = _ends(found)
    choices = [
        ("shown now: " if end == found.leaf_id else "") + _branch_words(found, end) for end in ends
    ]
    chosen = host.chosen("Branches of this conversation:", choices)
    if chosen is not None and ends[chosen] != found.leaf_id:
        await host.branches.show_branch(ends[chosen])


def _ends(found: Tree) -> list[int]:
    """The last messages of all branches, the oldest first."""
    return [id_ for id_ in found.nodes if not found.children.get(id_)]


def _branch_words(found: Tree, end: int) -> str:
    """How a branch goes on from where it parts from others, and ends."""
    path = found.path(end)
    parts = [id_ for id_ in path if found.place(id_)[1] > 1] or path[:1]
    first, last = (_first_words(found.nodes[id_].words) for id_ in (parts[-1], end))
    return first if parts[-1] == end else f"{first}; ends with: {last}"


async def next_branch(host: PlainChat, text: str) -> None:
    found = await host.branches.tree()
    beside = found.beside(found.path(found.leaf_id), 1) if found is not None else None
    if beside is None:
        host.lines.say(wording.NO_BRANCHES)
    else:
        await host.branches.show_branch(beside)


async def system(host: PlainChat, text: str) -> None:
    if not text:
        host.lines.say(*wording.system_prompt(host.chat.system))
        return
    new = "" if text.lower() == "off" else text
    host.lines.say(*wording.system_prompt_set(new, await host.branches.set_system(new)))


async def sampling(host: PlainChat, text: str) -> None:
    """Say how tokens are chosen, or set a number: `temperature 0.5`, `temperature off`."""
    name, _, value = text.partition(" ")
    here, value = dict(host.chat.sampling), value.strip()
    if not name:
        usual = usual_values(host.settings, cast(Any, host))
        host.lines.say(
            *(f"{each}: {here.get(each, usual[each] or 'not set')}." for each in NAMES),
            "/sampling NAME VALUE sets one in this conversation, /sampling NAME off gives it up.",
        )
        return
    if name not in NAMES:
        raise UsageError(f"There is no {name[:40]!r}.", f"It is one of {', '.join(NAMES)}.")
    if not value:
        raise UsageError(f"{name} needs a value, or off.", f"For instance: /sampling {name} 1")
    here.pop(name, None)
    await host.set_sampling(here if value.lower() == "off" else here | checked({name: value}))
    host.lines.say("It holds from the next question on.")


# Pictures and texts


async def image(host: PlainChat, text: str) -> None:
    if not text:
        folder, found = await in_thread("ds4tui-folder", newest_screenshots)
        if not found:
            host.lines.say(wording.no_pictures(folder))
            return
        chosen = host.chosen(f"The newest in {folder}:", [each.path.name for each in found])
        if chosen is None:
            return
        text = quoted(str(found[chosen].path))
    await host.attaching.add_named(text)


async def copy(host: PlainChat, text: str) -> None:
    found = copyables(host.chat.path)
    if not found:
        host.lines.say(wording.NOTHING_TO_COPY)
        return
    choices = [f"{each.what.removeprefix('The ')}: {_first_words(each.text)}" for each in found]
    chosen = host.chosen("What can be copied, the newest first:", choices)
    if chosen is None:
        return
    outcome = await in_thread("ds4tui-copy", lambda: copy_with_tool(found[chosen].text))
    if outcome.tool is None:
        why = f" ({outcome.problem})" if outcome.problem else ""
        raise Ds4Error(
            f"No clipboard program took it{why}.", "/export writes the conversation to a file."
        )
    host.lines.say(wording.copied(found[chosen].what, outcome))


async def editor(host: PlainChat, text: str) -> None:
    if not host.lines.is_terminal:
        raise UsageError("An editor needs a terminal.", "Write the message as a line.")
    written = pasted(edited(host.prompt.text))
    if not written.strip():
        host.lines.say("Nothing was written.")
        return
    host.lines.say("Written:", written)
    if (host.lines.line("Send it? yes or no: ") or "").strip().lower() in ("y", "yes"):
        host.prompt.text = ""
        await host.ask(written)
    else:
        host.prompt.put(written)


# What the app's panels and screens say


# What commands of panels do here; the others do what the table says.
_HELP = {
    "panel": "say what the engine holds and does",
    "decisions": "say the last decisions: what was kept and evaluated, and why",
    "disk": "say what is stored on disk",
    "model": "open another model (nothing: tell which is open)",
    "sampling": "say how tokens are chosen, or set it (temperature 0.5, temperature off)",
    "agents": "say what other programs ask over HTTP, and what is reused for it",
    "image": "send pictures with the next message (nothing: list the newest screenshots)",
}


def help_lines(host: PlainChat, text: str) -> None:
    for command in commands.COMMANDS:
        also = "".join(f", or /{alias}" for alias in command.aliases)
        note = "" if act_of(command) else " (only in the app)"
        host.lines.say(f"{command.usage}{also}: {_HELP.get(command.name, command.help)}{note}.")
    host.lines.say(
        "@PATH in a message sends a picture with it. A backslash at the end of a line goes on "
        "with the next one. Ctrl+C stops an answer, Ctrl+D leaves."
    )


def stop(host: PlainChat, text: str) -> None:
    host.lines.say("No answer is being written. Ctrl+C stops one.")


def _stats_lines(host: PlainChat, which: str) -> None:
    stats = host.stats
    told = {
        "panel": lambda: telling.engine(stats, host.models.server_url),
        "decisions": lambda: telling.decisions(stats),
        "disk": lambda: telling.disk(stats),
    }
    host.lines.say(*told[which]())


def act_of(command: Command) -> Act | None:
    """What a command does here; None: it is about the screen."""
    return next((ACTS[n] for n in (command.name, *command.aliases) if n in ACTS), None)


ACTS: dict[str, Act] = {
    "stop": stop,
    "new": lambda host, text: host.start_new(),
    "resume": resume,
    "panel": lambda host, text: _stats_lines(host, "panel"),
    "decisions": lambda host, text: _stats_lines(host, "decisions"),
    "disk": lambda host, text: _stats_lines(host, "disk"),
    "cache": lambda host, text: host.as_app.cached.tell(text),
    "pin": lambda host, text: host.as_app.cached.pin(text),
    "agents": lambda host, text: host.lines.say(*telling.requests(host.agents.requests)),
    "image": image,
    "screenshot": lambda host, text: host.attaching.add_screenshot(),
    "server": lambda host, text: host.models.switch_server(text),
    "system": system,
    "sampling": sampling,
    "think": lambda host, text: host.as_app.acts.think(text),
    "model": lambda host, text: host.models.change(text),
    "regen": lambda host, text: host.branches.regenerate(),
    "edit": edit,
    "fork": fork,
    "tree": tree,
    "next": next_branch,
    "copy": copy,
    "editor": editor,
    "export": export,
    "import": take_in,
    "help": help_lines,
    "quit": lambda host, text: host.leave(),
}
