"""`ds4tui` in a terminal: put the app together and run it."""

from contextlib import closing

from ds4tui.agents import Agents
from ds4tui.app import Ds4App
from ds4tui.chat.ledger import ConversationLedger
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings
from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import ModelNotFound
from ds4tui.library.pull import pull
from ds4tui.library.resolve import resolve_model
from ds4tui.opening import open_assistant
from ds4tui.serve import start_server
from ds4tui.sight import require_named
from ds4tui.tui.graphics import asked_way


def open_app(settings: Settings, continue_last: bool) -> int:
    """The exit code. Conversations that cannot be opened are told in the app, which then keeps
    nothing."""
    with closing(ConversationStore.open_or_memory(settings.database_path)) as store:
        agents = Agents(ConversationLedger(store))
        # The terminal is asked here: once the app runs, what it answers are keys.
        app = Ds4App(
            settings,
            store,
            open_model=lambda name, progress: open_assistant(
                name, settings, progress, is_first_model(name, settings)
            ),
            start_server=lambda assistant: start_server(assistant, settings, agents),
            pull_model=lambda name, progress: pull(name, settings.data_dir, progress),
            model_name=settings.model,
            continue_last=continue_last,
            check_model=lambda name: check_model(name, settings),
            way=asked_way(),
            agents=agents,
        )
        app.run()
    return app.return_code or 0


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
