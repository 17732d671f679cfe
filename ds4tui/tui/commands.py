"""The one table of commands: slash completion, palette, keys, footer and help are read off it.

A command's `run` is handed a CommandHost (the app) and the text after the command's name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from textual.binding import Binding
from textual.content import Content

from ds4tui.tui.words import HEADING, QUIET

if TYPE_CHECKING:
    from ds4tui.tui.acts import Acts
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
    def models(self) -> "Models": ...

    def stop_turn(self) -> Any: ...
    def new_chat(self) -> Any: ...
    def add_picture(self, paths: str) -> Any: ...
    def take_screenshot(self) -> Any: ...
    def switch_server(self) -> Any: ...
    def switch_panel(self) -> Any: ...
    def switch_decisions(self) -> Any: ...
    def switch_disk(self) -> Any: ...
    def switch_agents(self) -> Any: ...
    def choose_theme(self) -> Any: ...
    def show_help(self) -> Any: ...
    def quit_app(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Command:
    """`argument` names what may follow the name; `footer` is the label in the footer, "" hides
    it. `when_idle`: refused while an answer is written, because it would change under it."""

    name: str
    help: str
    run: Callable[[CommandHost, str], Any]
    keys: tuple[str, ...] = ()
    argument: str = ""
    footer: str = ""
    aliases: tuple[str, ...] = ()
    when_idle: bool = False
    is_enabled: Callable[[CommandHost], bool] = lambda host: True

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.argument}".rstrip()


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
        keys=("f2", "ctrl+b"),
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
        "agents",
        "show or hide the agents: what other programs ask over HTTP, and what is reused for it",
        lambda host, text: host.switch_agents(),
        keys=("f6",),
        aliases=("requests",),
    ),
    Command(
        "serve",
        "switch the HTTP server on or off",
        lambda host, text: host.switch_server(),
        keys=("f4",),
        footer="Server",
    ),
    Command(
        "system",
        "set the system prompt (off removes it, nothing shows it)",
        lambda host, text: host.acts.set_system(text),
        argument="TEXT",
        when_idle=True,
    ),
    Command(
        "model",
        "open another model (nothing: tell which is open)",
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
    ("backspace", "behind a picture in the prompt: take all of it out"),
    ("up, down", "in an empty prompt: bring back what was sent"),
    ("pageup, pagedown", "scroll the conversation by a page"),
    ("ctrl+up, ctrl+down", "scroll it by a line"),
    ("ctrl+home, ctrl+end", "to its beginning, to its end"),
    ("tab", "complete a /command, or move the focus"),
    ("shift+up, shift+down", "in the decisions: scroll the chosen one's details"),
    ("enter, delete", "in the agents: open the chosen request's conversation, stop the request"),
    ("ctrl+p", "command palette"),
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


def bindings() -> list[Binding]:
    """The keys of all commands, for the app. The prompt has the focus nearly always and uses
    some of these keys itself, hence priority."""
    return [
        Binding(
            ",".join(command.keys),
            f"command('{command.name}')",
            command.footer or command.name,
            show=bool(command.footer),
            priority=True,
            tooltip=command.help,
            id=command.name,
        )
        for command in COMMANDS
        if command.keys
    ]


def named(name: str) -> Command:
    return next(c for c in COMMANDS if c.name == name)


def help_content() -> Content:
    """The help screen's text."""
    rows = [(c.usage, ", ".join(c.keys), c.help) for c in COMMANDS]
    usage_width = max(len(usage) for usage, _, _ in rows) + 2
    keys_width = max(len(keys) for _, keys, _ in rows) + 2
    other_width = max(len(keys) for keys, _ in OTHER_KEYS) + 2
    lines = [Content.styled("Commands", HEADING)]
    for usage, keys, words in rows:
        lines.append(
            Content.assemble(
                (usage.ljust(usage_width), "bold"), (keys.ljust(keys_width), QUIET), words
            )
        )
    lines += [Content(""), Content.styled("Keys", HEADING)]
    for keys, words in OTHER_KEYS:
        lines.append(Content.assemble((keys.ljust(other_width), "bold"), words))
    return Content("\n").join(lines)
