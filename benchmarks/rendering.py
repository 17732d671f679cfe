"""What the next turn of a long conversation costs to render, beside rendering all of it.

    python benchmarks/rendering.py [-m NAME] [--tokens 340000] [--turns 300] [--json]

An agent's conversation: questions, calls, results in JSON, replies whose ids were sampled. The
next request is a client's: new objects, replies as text, keys in another order. Both are timed
in turns in this process, in CPU time; compare numbers of one run only.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.rendering import ChatFormat
from ds4tui.chat.replay import ReplayMemory
from ds4tui.config import load_settings
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.library.resolve import resolve_model

WORDS = (Path(__file__).parent.parent / "tests" / "data" / "alice.txt").read_text().split()
READ = Tool("read", "Read a file.", '{"type": "object", "properties": {"path": {}}}')


def conversation(
    tokenizer: Tokenizer, memory: ReplayMemory, tokens: int, turns: int
) -> list[Message]:
    """One that ends with a result; its replies are in `memory`."""
    draw = random.Random(1)
    sample = draw.choices(WORDS, k=5000)
    per_turn = int(tokens / turns * len(sample) / len(tokenizer.encode(" ".join(sample))))

    def text(words: float) -> str:
        return " ".join(draw.choices(WORDS, k=int(words)))

    told = [Message("system", text(2000)), Message("user", text(per_turn))]
    for number in range(turns):
        arguments = json.dumps({"path": f"file{number}.txt", "line": number})
        call = ToolCall(f"call00{number:03}", "read", arguments)
        said = text(per_turn * 0.35)
        written = f'{said}\n<tool_call>\n{{"name": "read", "arguments": {arguments}}}\n</tool_call>'
        memory.remember(told, said, tokenizer.encode(written), (call,))
        told.append(Message("assistant", said, tool_calls=(call,)))
        result = json.dumps({"text": text(per_turn * 0.6), "lines": number})
        told.append(Message("tool", result, tool_call_id=call.id, name="read"))
    return told


def sent_back(told: Sequence[Message]) -> list[Message]:
    """The same in objects of their own, as a server reads them out of a request."""
    return [
        Message(
            m.role,
            json.loads(json.dumps(m.text)),
            tool_calls=tuple(
                ToolCall(c.id, c.name, json.dumps(dict(reversed(json.loads(c.arguments).items()))))
                for c in m.tool_calls
            ),
            tool_call_id=m.tool_call_id,
            name=m.name,
        )
        for m in told
    ]


def timed_ms(work: Callable[[], object]) -> float:
    """Of the CPU's time, which other programs disturb least."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def main() -> int:
    arguments = _arguments()
    path = resolve_model(arguments.model, load_settings().data_dir)
    with GGUFFile.open(path) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf)
        made = [ChatFormat.from_gguf(gguf, tokenizer) for _ in range(arguments.repeats + 1)]
    memory = ReplayMemory()
    told = conversation(tokenizer, memory, arguments.tokens, arguments.turns)
    chat_format, *fresh = made
    first = timed_ms(
        lambda: chat_format.laid_out(memory.recall(sent_back(told), note=True), [READ])
    )
    recalls, turns, wholes = [], [], []
    for number, other in enumerate(fresh):
        memory.remember(told, f"So {number}.", tokenizer.encode(f"So {number}."))
        told += [Message("assistant", f"So {number}."), Message("user", f"What of {number}?")]
        request = sent_back(told)
        recalls.append(timed_ms(lambda r=request: memory.recall(r, note=True)))
        known = memory.recall(request)
        turns.append(timed_ms(lambda k=known: chat_format.laid_out(k, [READ])))
        wholes.append(timed_ms(lambda k=known, o=other: o.whole(k, [READ])))
    recall, turn, whole = map(statistics.median, (recalls, turns, wholes))
    length = len(chat_format.render(known, [READ]))
    found = {
        "tokens": length,
        "messages": len(told),
        "recall_ms": round(recall, 1),
        "next_turn_ms": round(turn, 1),
        "whole_ms": round(whole, 1),
        "first_ms": round(first, 1),
        "ratio": round(whole / (recall + turn), 1),
    }
    if not arguments.json:
        print(f"{length:,} tokens in {len(told)} messages ({path.name})")
        print(f"next turn: {turn:.1f} ms, and {recall:.1f} ms to recall what was sampled")
        print(f"all of it: {whole:,.1f} ms, {found['ratio']} times that")
    print(json.dumps(found))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=340_000)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
