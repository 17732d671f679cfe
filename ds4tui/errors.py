"""Everything that can go wrong, as one small tree.

    Ds4Error                 message (what was wrong) and hint (what to do)
    ├── UsageError           the command line or a request is wrong        exit 2, HTTP 400
    │   ├── ConfigError      a settings file or DS4TUI_* variable is wrong
    │   ├── RequestError     a field of a request is wrong (names the field)
    │   ├── PictureError     a file is no picture that can be decoded (names it)
    │   └── ContextOverflow  the prompt does not fit the context (both numbers)
    ├── ModelError           a model cannot be found, read or run          exit 1, HTTP 503
    │   ├── ModelNotFound    exit 2 if nothing goes by that name (library/resolve.py)
    │   ├── GGUFError        the file is not a GGUF we can read
    │   └── TemplateError    the chat template failed (names the line)
    ├── DownloadError        `pull` failed; what was fetched is kept    exit 2 for a wrong name
    ├── StoreError           the conversation database cannot be used
    ├── ConversationWentOn   another app or an agent added to it meanwhile
    └── EngineError          the engine failed at work                     exit 1, HTTP 500
        ├── OutOfMemory      predicted or met (both numbers)
        └── EngineClosed     the engine stopped before the job was done

Low-level errors are translated where they are met (`raise GGUFError(...) from exc`).
"""


class Ds4Error(Exception):
    """An error that a person can read: `message` says what was wrong, `hint` what to do."""

    exit_code = 1
    http_status = 500

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class UsageError(Ds4Error):
    exit_code = 2
    http_status = 400


class ConfigError(UsageError):
    pass


class RequestError(UsageError):
    """A field of an API request is missing, unknown or out of range."""

    def __init__(self, message: str, param: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint)
        self.param = param


class PictureError(UsageError):
    """A file is no picture that can be decoded. `name`: as whoever brought it calls it, in a
    request the field that holds it."""

    def __init__(self, message: str, name: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.name = name


_IMAGES = (
    "Images take {:,} or more of them: leave out earlier ones, "
    "or have the setting images_kept do so. "
)


class ContextOverflow(UsageError):
    """`prompt_tokens` (plus room for at least one new token) exceed `context_tokens`."""

    def __init__(
        self,
        prompt_tokens: int,
        context_tokens: int,
        at_least: bool = False,
        image_tokens: int = 0,
    ) -> None:
        """`at_least`: it was told without counting exactly. So many of them are images'."""
        count = f"{'at least ' if at_least else ''}{prompt_tokens:,}"
        room = "" if prompt_tokens > context_tokens else ", which leaves no room for a reply"
        super().__init__(
            f"The conversation has {count} tokens, the context holds {context_tokens:,}{room}.",
            (_IMAGES.format(image_tokens) if image_tokens else "")
            + "Shorten it, start a new chat, or use a model with a longer context.",
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class ModelError(Ds4Error):
    http_status = 503


class ModelNotFound(ModelError):
    http_status = 404


class GGUFError(ModelError):
    pass


class TemplateError(ModelError):
    http_status = 400


class DownloadError(Ds4Error):
    pass


class StoreError(Ds4Error):
    pass


class ConversationWentOn(Ds4Error):
    """What is shown of a conversation is not its end any more."""

    def __init__(self) -> None:
        super().__init__(
            "This conversation went on elsewhere, in another app or by an agent.",
            "What is new in it is shown now; Enter sends your question, which is in the prompt.",
        )


class EngineError(Ds4Error):
    pass


class OutOfMemory(EngineError):
    """`needed_bytes` were predicted or asked for, `available_bytes` were there."""

    http_status = 507

    def __init__(self, what: str, needed_bytes: int, available_bytes: int, hint: str = "") -> None:
        super().__init__(
            f"{what} needs {needed_bytes / 2**20:,.0f} MiB, "
            f"{available_bytes / 2**20:,.0f} MiB are available.",
            hint or "Close other programs, use a smaller context or a smaller model.",
        )
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class LostRecord(EngineError):
    """Something on disk that a plan counted on cannot be read: a miss, to be planned anew."""


class EngineClosed(EngineError):
    http_status = 503
