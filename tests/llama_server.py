"""llama.cpp as the independent reader of tokenizers and templates."""

from pathlib import Path
from typing import Any

from tests.parity.llamacpp import LlamaCpp


class LlamaServer(LlamaCpp):
    """With as small a context as it takes: nothing is evaluated."""

    def __init__(self, model: Path, log: Path) -> None:
        super().__init__(model, log, ubatch=32, context=256)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        assert method == ("GET" if body is None else "POST")
        return self._ask(path, body)

    def tokenize(self, text: str, *, special: bool = True, add_bos: bool = False) -> list[int]:
        body = {"content": text, "parse_special": special, "add_special": add_bos}
        tokens: list[int] = self._ask("/tokenize", body)["tokens"]
        return tokens

    def detokenize(self, ids: list[int]) -> str:
        text: str = self._ask("/detokenize", {"tokens": ids})["content"]
        return text

    def apply_template(self, messages: list[dict[str, str]], **more: Any) -> str:
        """The prompt of `messages`; `more` are other fields of a chat request."""
        prompt: str = self._ask("/apply-template", {"messages": messages, **more})["prompt"]
        return prompt
