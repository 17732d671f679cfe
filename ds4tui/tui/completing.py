"""What the list of completions does to the prompt: commands of the table, paths of pictures."""

from collections.abc import Callable
from typing import Any

from ds4tui.pictures.paths import completions
from ds4tui.tui.attaching import Attaching
from ds4tui.tui.background import in_thread
from ds4tui.tui.commands import Command
from ds4tui.tui.completion import CompletionList
from ds4tui.tui.labels import Mention
from ds4tui.tui.prompt import Prompt

Enter = Callable[[Command, str, str], None]


class Completing:
    """Belongs to the UI loop. `enter` asks for a command (with its argument, and the text that it
    was); `run_worker` is a widget's."""

    def __init__(
        self,
        prompt: Prompt,
        listed: CompletionList,
        attaching: Attaching,
        enter: Enter,
        run_worker: Callable[..., Any],
    ) -> None:
        self._prompt, self._list, self._attaching = prompt, listed, attaching
        self._enter, self._run_worker = enter, run_worker

    def close(self) -> bool:
        """Close the list; whether it was open."""
        is_open = self._list.display
        self._list.display = self._prompt.is_completing = False
        return is_open

    def show(self) -> None:
        """Offer what completes the text of the prompt."""
        is_command = self._list.offer_commands(self._prompt.text)
        self._prompt.is_completing, self._prompt.is_completing_path = is_command, False
        mention = None if is_command or self._attaching.refusal else self._prompt.mention
        if mention is not None:
            self._run_worker(self._offer_paths(mention), group="paths", exclusive=True)

    async def _offer_paths(self, mention: Mention) -> None:
        found = await in_thread("ds4tui-paths", lambda: completions(mention.path))
        if self._prompt.mention == mention:
            self._prompt.is_completing = self._list.offer_paths(found)
            self._prompt.is_completing_path = True

    def choose(self, key: str, text: str = "") -> str:
        """A key for the list, with the `text` that Enter took out of the prompt. What of that is
        to be sent after all: the list may be of a text that stands there no more."""
        if key == "escape":
            self.close()
        elif key in ("up", "down"):
            self._list.move(-1 if key == "up" else 1)
        elif self._list.is_of_paths:
            self._choose_path()
        elif key == "tab":
            chosen = self._list.chosen
            if chosen is not None and chosen.completion is not None:
                self._prompt.put(f"{chosen.completion.text} ")
        else:
            return self._choose_command(text)
        return ""

    def _choose_path(self) -> None:
        """Put the chosen path in the place of what was typed of it, or, of a picture, itself."""
        chosen, mention = self._list.chosen, self._prompt.mention
        self.close()
        if chosen is None or mention is None:
            return
        self._prompt.put_mention(mention, chosen.mention)
        if not chosen.is_folder:
            self._run_worker(self._attaching.begun(self._attaching.read_mention(chosen.mention)))

    def _choose_command(self, text: str) -> str:
        chosen = self._list.completion_for(text)
        if chosen is None:
            return text
        is_whole = text[1:].lower() in (chosen.command.name, *chosen.command.aliases)
        is_run = is_whole and bool(chosen.command.choices)  # its other choices are seen while typed
        if chosen.command.takes_argument and not chosen.is_choice and not is_run:
            self._prompt.give_back(f"{chosen.text} ")
        else:
            self._enter(chosen.command, chosen.argument, text)
        self.show()
        return ""
