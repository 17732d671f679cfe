"""Where a turn ends in what a template wrote."""

from ds4tui.engine.tokenizer import Tokenizer


def first_end(tokenizer: Tokenizer, text: str) -> int | None:
    """Where in `text` the first token stands that ends a turn; None if none does."""
    at = 0
    for part in tokenizer.split(text):
        if isinstance(part, int):
            if part in tokenizer.end_ids:
                return at
            at += len(tokenizer.token_text(part))
        else:
            at += len(part)
    return None
