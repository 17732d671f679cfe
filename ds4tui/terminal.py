"""`ds4tui` in a terminal: put the app together and run it."""

import sys
from contextlib import closing

from ds4tui.agents import Agents
from ds4tui.app import Ds4App
from ds4tui.chat.ledger import ConversationLedger
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings, own_keys
from ds4tui.crash import message
from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import ModelNotFound
from ds4tui.library.pull import pull
from ds4tui.library.resolve import resolve_model
from ds4tui.opening import open_assistant
from ds4tui.plain.chat import Ports
from ds4tui.plain.running import run_plain
from ds4tui.serve import start_server
from ds4tui.sight import require_named
from ds4tui.tui.graphics import asked_way
from ds4tui.tui.keymap import shortcuts


def open_app(settings: Settings, continue_last: bool) -> int:
    """The exit code. Conversations that cannot be opened are told in the app, which then keeps
    nothing."""
    with closing(ConversationStore.open_or_memory(settings.database_path)) as store:
        agents = Agents(ConversationLedger(store))
        ports = ports_of(settings, agents)
        # The terminal is asked here: once the app runs, what it answers are keys.
        app = Ds4App(
            settings,
            store,
            open_model=ports.open_model,
            start_server=ports.start_server,
            pull_model=ports.pull_model,
            model_name=settings.model,
            continue_last=continue_last,
            check_model=ports.check_model,
            way=asked_way(),
            agents=agents,
            shortcuts=shortcuts(own_keys()),
        )
        app.run()
    if app.crash is not None:
        print(message(app.crash[0], "the app", app.crash[1]), file=sys.stderr)
    return app.return_code or 0


def open_plain(settings: Settings, continue_last: bool) -> int:
    """The chat in lines, on whatever standard input and output are; the exit code."""
    with closing(ConversationStore.open_or_memory(settings.database_path)) as store:
        agents = Agents(ConversationLedger(store))
        return run_plain(settings, store, ports_of(settings, agents), continue_last, agents)


def ports_of(settings: Settings, agents: Agents) -> Ports:
    """What a front-end asks of the world, with these settings."""
    return Ports(
        open_model=lambda name, progress: open_assistant(
            name, settings, progress, is_first_model(name, settings)
        ),
        start_server=lambda assistant: start_server(assistant, settings, agents),
        pull_model=lambda name, progress: pull(name, settings.data_dir, progress),
        check_model=lambda name: check_model(name, settings),
    )


def check_model(name: str, settings: Settings) -> None:
    """Raises ModelNotFound or GGUFError if there is no model `name` or its file's header is bad,
    UsageError or GGUFError if the mmproj that was named for it is not there or does not fit. Fast;
    needs no MLX."""
    with GGUFFile.open(resolve_model(name, settings.data_dir)) as gguf:
        if is_first_model(name, settings):
            require_named(gguf, settings)


def is_first_model(name: str, settings: Settings) -> bool:
    """Whether `name` is of the model that the settings name, beside which their mmproj stands."""
    try:
        first, other = (resolve_model(n, settings.data_dir) for n in (settings.model, name))
    except ModelNotFound:
        return name == settings.model
    return first == other
