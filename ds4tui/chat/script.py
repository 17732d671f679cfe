"""A conversation written by the template: messages to its text, what people wrote marked."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ds4tui.chat.messages import Message, Tool
from ds4tui.chat.probing import Abilities
from ds4tui.chat.template import ChatTemplate
from ds4tui.chat.turns import for_forms, texts_of, tool_values, turn_values, with_tools_told
from ds4tui.chat.untrusted import Guard, Marks


@dataclass(frozen=True, slots=True)
class Options:
    """What a rendering is asked for beside its messages. `thinking` None leaves it to the
    template; `now` is the time it may show."""

    tools: tuple[Tool, ...] = ()
    thinking: bool | None = None
    now: Callable[[], datetime] = datetime.now


@dataclass(frozen=True, slots=True)
class Script:
    """May be shared by threads."""

    template: ChatTemplate
    abilities: Abilities
    guard: Guard

    def choose_marks(self, messages: Sequence[Message], options: Options) -> Marks:
        """Marks that occur in nothing that is written."""
        return self.guard.choose_marks([self.template.source, *texts_of(messages, options.tools)])

    def write(
        self,
        messages: Sequence[Message],
        options: Options,
        marks: Marks,
        opened: bool = True,
        stands: Collection[str] = (),
        edged: bool = False,
    ) -> str:
        """The text of `messages`; `opened` up to where the assistant's reply begins. `stands`
        are texts of messages that are marks themselves; `edged` puts a mark at either end of
        each text. Raises TemplateError."""

        def protect(text: str) -> str:
            return self.guard.protect(text, marks)

        forms, tools, told = self.abilities.forms, options.tools, messages
        if tools and not self.abilities.tools:
            told, tools = with_tools_told(told, tools), ()
            forms = replace(forms, calls=False)

        def content(text: str) -> str:
            harmless = text if text in stands else protect(text)
            return marks.edged(harmless) if edged else harmless

        turns = [turn_values(m, content(m.text), forms, protect) for m in for_forms(told, forms)]
        offered = [tool_values(tool, protect) for tool in tools] or None
        return self.template.render(turns, options.now, opened, offered, options.thinking)

    def has_place_for_calls(self, options: Options) -> bool:
        """Whether calls are written by the template itself."""
        return self.abilities.forms.calls and (self.abilities.tools or not options.tools)
