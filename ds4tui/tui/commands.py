"""The one table of commands: slash completion, palette, keys, footer and help are read off it.

A command's `run` is handed a CommandHost (the app) and the text after the command's name.
Nothing here knows Textual: the keys become bindings in keymap.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ds4tui.errors import UsageError

if TYPE_CHECKING:
    from ds4tui.tui.acts import Acts
    from ds4tui.tui.cached import Cached
    from ds4tui.tui.conversations import Conversations
    from ds4tui.tui.models import Models


class CommandHost(Protocol):
    """What commands can ask of the app. Each returns at once or is awaited."""

    @property
    def is_busy(self) -> bool: ...
    @property
    def acts(self) -> "Acts": ...
    @property
    def conversations(self) -> "Conversations": ...
    @property
    def cached(self) -> "Cached": ...
    @property
    def models(self) -> "Models": ...

    def stop_turn(self) -> Any: ...
    def new_chat(self) -> Any: ...
    def add_picture(self, paths: str) -> Any: ...
    def take_screenshot(self) -> Any: ...
    def switch_server(self, wanted: bool | None = None) -> Any: ...
    def switch_panel(self) -> Any: ...
    def switch_decisions(self) -> Any: ...
    def switch_disk(self) -> Any: ...
    def switch_agents(self) -> Any: ...
    def choose_theme(self) -> Any: ...
    def show_help(self) -> Any: ...
    def quit_app(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Command:
    """`argument` names what may follow the name, `choices` list it with what each does ("" stands
    for none). `footer` is the label in the footer, "" hides it. `when_idle`: refused while an
    answer is written, because it would change under it."""

    name: str
    help: str
    run: Callable[[CommandHost, str], Any]
    keys: tuple[str, ...] = ()
    argument: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    footer: str = ""
    aliases: tuple[str, ...] = ()
    when_idle: bool = False
    is_enabled: Callable[[CommandHost], bool] = lambda host: True

    @property
    def usage(self) -> str:
        words = "|".join(word for word, _ in self.choices if word)
        return f"/{self.name} {self.argument or (words and f'[{words}]')}".rstrip()

    @property
    def takes_argument(self) -> bool:
        return bool(self.argument or self.choices)


@dataclass(frozen=True, slots=True)
class Completion:
    """A command as it may be entered: with one of its choices, or (argument "") as it stands."""

    command: Command
    argument: str = ""
    is_choice: bool = False

    @property
    def text(self) -> str:
        return f"/{self.command.name} {self.argument}".rstrip()

    @property
    def help(self) -> str:
        told = dict(self.command.choices) if self.is_choice else {}
        return told.get(self.argument, self.command.help)


COMMANDS: tuple[Command, ...] = (
    Command(
        "stop",
        "stop the answer; what there is of it is kept",
        lambda host, text: host.stop_turn(),
        keys=("escape",),
        footer="Stop",
        is_enabled=lambda host: host.is_busy,
    ),
    Command(
        "new",
        "start a new chat; the old one stays in the list",
        lambda host, text: host.new_chat(),
        keys=("ctrl+n",),
        footer="New",
        when_idle=True,
    ),
    Command(
        "resume",
        "list the conversations and open one",
        lambda host, text: host.conversations.choose(),
        keys=("ctrl+r",),
        footer="Resume",
        aliases=("continue",),
        when_idle=True,
    ),
    Command(
        "panel",
        "show or hide the KV panel",
        lambda host, text: host.switch_panel(),
        keys=("f2",),
        footer="Panel",
    ),
    Command(
        "decisions",
        "show or hide the decisions: what was kept and evaluated, and why",
        lambda host, text: host.switch_decisions(),
        keys=("f3",),
        footer="Why",
        aliases=("why",),
    ),
    Command(
        "image",
        "put pictures into the prompt (nothing: list the newest screenshots)",
        lambda host, text: host.add_picture(text),
        argument="PATH...",
    ),
    Command(
        "screenshot",
        "take a screenshot with the system's own program",
        lambda host, text: host.take_screenshot(),
        aliases=("capture",),
    ),
    Command(
        "disk",
        "show or hide the disk: what is stored, in which room, and what went wrong",
        lambda host, text: host.switch_disk(),
        keys=("f5",),
    ),
    Command(
        "cache",
        "tell what the KV cache holds in memory and on disk, and what was decided last",
        lambda host, text: host.cached.tell(text),
        choices=(
            ("", "tell what the KV cache holds in memory and on disk, and what was decided last"),
            ("disk", "show or hide the disk panel"),
            ("decisions", "show or hide the decisions"),
            ("clear", "remove what is stored on disk, but for what is pinned"),
        ),
    ),
    Command(
        "pin",
        "keep this conversation on disk, whatever room is needed",
        lambda host, text: host.cached.pin(text),
        choices=(
            ("", "keep this conversation on disk, whatever room is needed"),
            ("off", "let this conversation go when room is needed"),
        ),
    ),
    Command(
        "agents",
        "show or hide the agents: what other programs ask over HTTP, and what is reused for it",
        lambda host, text: host.switch_agents(),
        keys=("f6",),
        aliases=("requests",),
    ),
    Command(
        "server",
        "switch the HTTP server on or off",
        lambda host, text: host.switch_server(_switch("server", text)),
        keys=("f4",),
        choices=(
            ("", "switch the HTTP server on or off"),
            ("on", "serve the open model to other programs"),
            ("off", "stop the HTTP server"),
        ),
        footer="Server",
        aliases=("serve",),
    ),
    Command(
        "system",
        "set the system prompt (off removes it, nothing shows it)",
        lambda host, text: host.acts.set_system(text),
        argument="TEXT",
        when_idle=True,
    ),
    Command(
        "sampling",
        "see and change how tokens are chosen (temperature and others), and the system prompt",
        lambda host, text: host.acts.tune(),
        aliases=("set",),
        when_idle=True,
    ),
    Command(
        "think",
        "tell whether the model thinks before it answers",
        lambda host, text: host.acts.think(text),
        choices=(
            ("", "tell whether the model thinks before it answers"),
            ("on", "have it think first, where its template has a switch"),
            ("off", "have it answer at once, where its template has a switch"),
            ("auto", "as the model was made"),
            ("show", "unfold what it thinks"),
            ("hide", "fold what it thinks to a line with its length"),
        ),
    ),
    Command(
        "model",
        "open another model (nothing: list them, and what can be fetched)",
        lambda host, text: host.models.change_to(text),
        argument="NAME",
        when_idle=True,
    ),
    Command(
        "regen",
        "have the last question answered once more; the other answer stays beside it",
        lambda host, text: host.acts.regenerate(),
        keys=("f8",),
        aliases=("retry",),
        when_idle=True,
    ),
    Command(
        "edit",
        "bring a question back into the prompt and ask it anew, on a branch beside it",
        lambda host, text: host.acts.edit(),
        keys=("f7",),
        when_idle=True,
    ),
    Command(
        "fork",
        "start a new conversation from before one of your questions",
        lambda host, text: host.acts.fork(),
        when_idle=True,
    ),
    Command(
        "tree",
        "list the branches of this conversation and go to one",
        lambda host, text: host.acts.choose_branch(),
        keys=("ctrl+t",),
        aliases=("branches",),
        when_idle=True,
    ),
    Command(
        "next",
        "show the next branch, where the conversation forked last",
        lambda host, text: host.acts.next_branch(),
        keys=("f10",),
        when_idle=True,
    ),
    Command(
        "copy",
        "copy a message, or a block of code exactly as it was written",
        lambda host, text: host.acts.copy(),
        keys=("f9",),
    ),
    Command(
        "editor",
        "write the prompt in your own editor (VISUAL, EDITOR)",
        lambda host, text: host.acts.edit_outside(),
        keys=("ctrl+g",),
        when_idle=True,
    ),
    Command(
        "export",
        "write this conversation to a file: Markdown, its pictures beside it, or .json",
        lambda host, text: host.conversations.export(text),
        argument="PATH",
        when_idle=True,
    ),
    Command(
        "import",
        "take in a conversation: JSON of OpenAI's messages",
        lambda host, text: host.conversations.take_in(text),
        argument="PATH",
        when_idle=True,
    ),
    Command("theme", "choose a colour theme", lambda host, text: host.choose_theme()),
    Command(
        "help",
        "list commands and keys",
        lambda host, text: host.show_help(),
        keys=("f1",),
        footer="Help",
    ),
    Command(
        "quit",
        "leave ds4tui",
        lambda host, text: host.quit_app(),
        keys=("ctrl+q",),
        footer="Quit",
        aliases=("exit",),
    ),
)

# Keys that are no commands, for the help screen.
OTHER_KEYS: tuple[tuple[str, str], ...] = (
    ("enter", "send; while an answer is written: send when it is done"),
    ("shift+enter, alt+enter, ctrl+j", "new line"),
    ("ctrl+v", "paste: the clipboard's picture, or else what was copied here"),
    ("@", "in the prompt: complete the path of a picture"),
    ("escape, escape", "in an empty prompt: choose a question to edit"),
    ("backspace", "behind a picture or a folded paste in the prompt: take all of it out"),
    ("ctrl+o", "in the prompt: unfold a paste"),
    ("up, down", "in an empty prompt: bring back what was sent"),
    ("pageup, pagedown", "scroll the conversation by a page"),
    ("ctrl+up, ctrl+down", "scroll it by a line"),
    ("ctrl+home, ctrl+end", "to its beginning, to its end"),
    ("tab", "complete a /command, or move the focus"),
    ("shift+up, shift+down", "in the decisions: scroll the chosen one's details"),
    ("enter, delete", "in the agents: open the chosen request's conversation, stop the request"),
    ("ctrl+c", "copy what is selected; twice: quit"),
)


def parse(text: str) -> tuple[Command | None, str, str] | None:
    """(command or None, its name as typed, its argument) if `text` is a command line.

    A line that begins with a slash but has another in its first word is a path: it is sent. So
    are several lines, unless they begin with a command that takes an argument: it may have lines.
    """
    if not text.startswith("/") or not text[1:].strip():
        return None
    name, *rest = text[1:].split(maxsplit=1)
    if "/" in name:
        return None
    found = next((c for c in COMMANDS if name.lower() in (c.name, *c.aliases)), None)
    if "\n" in text.rstrip() and not (found and found.argument):
        return None
    return found, name, rest[0].strip() if rest else ""


def completions(text: str) -> tuple[Command, ...]:
    """The commands whose name begins like `text` ("/" and the beginning of a name)."""
    if not text.startswith("/") or any(c.isspace() for c in text):
        return ()
    begun = text[1:].lower()
    return tuple(
        c for c in COMMANDS if any(name.startswith(begun) for name in (c.name, *c.aliases))
    )


def offered(text: str) -> tuple[Completion, ...]:
    """What completes `text`: a command's name, then, behind a space, what it may be told."""
    name, space, begun = text.partition(" ")
    if not space:
        return tuple(map(Completion, completions(text)))
    known = parse(name)
    command = known[0] if known else None
    if command is None or any(c.isspace() for c in begun):
        return ()
    return tuple(
        Completion(command, word, is_choice=True)
        for word, _ in command.choices
        if word.startswith(begun.lower())
    )


def entries() -> tuple[Completion, ...]:
    """Everything that can be chosen in a list: each choice of a command stands for itself."""
    return tuple(
        Completion(command, word, is_choice=bool(command.choices))
        for command in COMMANDS
        for word in [word for word, _ in command.choices] or [""]
    )


def named(name: str) -> Command:
    return next(c for c in COMMANDS if c.name == name)


def _switch(name: str, text: str) -> bool | None:
    """Of `on`, `off` and nothing. Raises UsageError."""
    if text.lower() not in ("", "on", "off"):
        raise UsageError(f"/{name} takes on or off, not {text[:40]!r}.")
    return {"on": True, "off": False}.get(text.lower())
