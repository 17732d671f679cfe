"""A model's chat template: Jinja, run in a sandbox, with the helpers that templates expect.

The helpers are those of Hugging Face's `apply_chat_template`, for which templates are written.
A template is code that came with a file: whatever it raises becomes a TemplateError. The sandbox
keeps it from the process. What it writes is bounded by what it is given; its running time is
bounded by that and by Jinja's longest range, unless it writes nothing while it runs.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ds4tui.errors import TemplateError

_FILE_NAME = "<chat template>"
_NOT_ASCII = re.compile("[^\x00-\x7f\ue000-\uf8ff\U000f0000-\U0010ffff]")
_HINT = "Another conversion of this model may have a template that works."

# A template writes each text once or twice, and some words of its own. What writes more would
# fill the memory before anybody could stop it.
_SPARE_CHARACTERS = 2**22
_TIMES_GIVEN = 64
# Of one text or list that is made by repeating another; powers beyond this have no use, either.
_REPEATED_MAX = 2**22
_EXPONENT_MAX = 4096
_WIDTH = re.compile(r"[0-9]{5,}")

# What template code can raise; MemoryError and the like are not the template's own.
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Refusal(jinja2.TemplateError):
    """The template called raise_exception."""


class _TooMuch(jinja2.TemplateError):
    """The template goes on and on."""


class _GenerationTag(Extension):
    """`{% generation %}` marks the reply for training; here its body is taken as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class ChatTemplate:
    """A compiled template. May be shared by threads."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """`variables` are given to every render (bos_token and its like). Raises TemplateError
        naming the line of a syntax error."""
        self.source = source
        self._variables = dict(variables)
        environment = _environment()
        try:
            code = environment.compile(source, filename=_FILE_NAME)
        except (*_FAULTS, SyntaxError) as exc:
            line = getattr(exc, "lineno", None) or 0
            raise TemplateError(
                f"The chat template is wrong at line {line}: {_words(exc)}.", _HINT
            ) from exc
        self._template = jinja2.Template.from_code(environment, code, environment.globals)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        now: Callable[[], datetime] = datetime.now,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
    ) -> str:
        """The text of `messages` (role and content each). `now` is what strftime_now shows;
        `thinking` None leaves it to the template.

        Raises TemplateError naming the template's line.
        """
        # Qwen and GLM call it by the one name, DeepSeek by the other.
        switch = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
        most = _SPARE_CHARACTERS + _TIMES_GIVEN * (_characters(messages) + _characters(tools))
        try:
            pieces = self._template.generate(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                **switch,
                strftime_now=lambda form: now().strftime(form),
                **self._variables,
            )
            return _joined(pieces, most)
        except _Refusal as exc:
            raise TemplateError(
                f"The chat template refuses this conversation: {exc} (line {_line(exc)})."
            ) from exc
        except _FAULTS as exc:
            raise TemplateError(
                f"The chat template failed at line {_line(exc)}: {_words(exc)}.", _HINT
            ) from exc


def _joined(pieces: Iterable[str], most: int) -> str:
    """Raises _TooMuch beyond `most` characters."""
    kept: list[str] = []
    for piece in pieces:
        kept.append(piece)
        most -= len(piece)
        if most < 0:
            raise _TooMuch("it writes without end")
    return "".join(kept)


def _characters(value: Any) -> int:
    """Of all texts in it, keys too."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(part) for pair in value.items() for part in pair)
    return sum(map(_characters, value)) if isinstance(value, Sequence) else 0


class _Environment(ImmutableSandboxedEnvironment):
    """Texts and numbers stay of a size that can be handled."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and _repeated(left, right) > _REPEATED_MAX:
            raise _TooMuch("it repeats a text too often")
        if operator == "**" and not abs(right) <= _EXPONENT_MAX:
            raise _TooMuch("a power is too large")
        if operator == "%" and isinstance(left, str) and _WIDTH.search(left):
            raise _TooMuch("a text is padded too wide")
        return super().call_binop(context, operator, left, right)


def _repeated(left: Any, right: Any) -> int:
    """How long the product is, if it is a text or a list."""
    for many, count in ((left, right), (right, left)):
        if isinstance(many, Sequence) and isinstance(count, int):
            return len(many) * count
    return 0


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on. Characters of private
    use are never escaped: among them are the marks that keep people's text apart."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _words(exc: BaseException) -> str:
    said = exc.message if isinstance(exc, jinja2.TemplateError) else str(exc)
    return (said or type(exc).__name__).rstrip(".")


def _line(exc: BaseException) -> int:
    """The template's line where `exc` arose, 0 if unknown; Jinja puts the template's own lines
    into the traceback."""
    line, step = 0, exc.__traceback__
    while step is not None:
        line = step.tb_lineno if _is_of_template(step) else line
        step = step.tb_next
    return line


def _is_of_template(step: TracebackType) -> bool:
    return step.tb_frame.f_code.co_filename == _FILE_NAME
