"""A server that is started again: clients send their history back, and only what is new costs."""

from pathlib import Path
from typing import Any

from ds4tui.assistant import Assistant
from ds4tui.config import Settings
from ds4tui.opening import open_assistant
from ds4tui.selftest.tiny_model import write_tiny_model
from tests.server.conftest import Running

SYSTEM = "You are brief. " * 22  # more than what is not stored


def opened(folder: Path) -> Assistant:
    return open_assistant(str(folder / "tiny.gguf"), Settings(data_dir=folder), lambda words: None)


def ask(running: Running, messages: list[Any]) -> Any:
    # A reply with one of these is not replayed.
    controls = running.assistant.format.tokenizer.control_texts.values()
    return running.client.chat.completions.create(
        model="tiny",
        messages=messages,
        temperature=0,
        max_tokens=24,
        logit_bias={str(token): -100 for token in controls},
    )


def test_a_history_that_comes_back_in_other_white_space_is_found_after_a_restart(
    tmp_path: Path,
) -> None:
    """Random weights babble bytes that are no text: only the ids on disk can find them again."""
    write_tiny_model(tmp_path / "tiny.gguf")
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Good morning."},
    ]
    resident = 0
    for turn in range(3):
        running = Running(opened(tmp_path))
        try:
            reply = ask(running, messages)
            usage, kv = reply.usage, reply.model_extra["kv"]
            assert usage.prompt_tokens_details.cached_tokens == kv["kept"] == resident
            assert kv["kind"] == ("load" if turn else "cold")
            # The token sampled last is told and not evaluated yet.
            resident = usage.prompt_tokens + usage.completion_tokens - 1
            content = reply.choices[0].message.content
        finally:
            running.close()
        messages += [
            {"role": "assistant", "content": f"\n{content}  \n"},
            {"role": "user", "content": f"Turn {turn} was fine."},
        ]


def test_without_a_disk_nothing_is_kept(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny.gguf")
    settings = Settings(data_dir=tmp_path, kv_disk="off")
    running = Running(open_assistant(str(tmp_path / "tiny.gguf"), settings, lambda words: None))
    try:
        ask(running, [{"role": "user", "content": SYSTEM}])
        assert running.assistant.stats.disk is None
    finally:
        running.close()
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.gguf"}
