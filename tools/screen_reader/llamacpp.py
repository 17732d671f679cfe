"""The same questions to llama.cpp, an independent reader of the same two files.

    python -m tools.screen_reader.llamacpp rename TEXT_GGUF COPY
    python -m tools.screen_reader.llamacpp ask COPY MMPROJ FOLDER SET OUT.json [COUNT]

Stock llama.cpp refuses SmolLM2 with an idefics3 projector: it looks <fake_token_around_image> and
<global-img> up in the vocabulary, and they are not there. The copy has ids 5 and 6 renamed to
them; its tensors are the same bytes.
"""

import base64
import json
import os
import sys
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gguf

from tools.screen_reader.heldout import MOST_TOKENS, Example
from tools.screen_reader.keys import finish_copy
from tools.screen_reader.prompts import FAKE, GLOBAL

RENAMED = {FAKE: "<fake_token_around_image>", GLOBAL: "<global-img>"}


def rename(source: Path, target: Path) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        if key == "tokenizer.ggml.tokens":
            value = [RENAMED.get(i, token) for i, token in enumerate(value)]
        if kind == gguf.GGUFValueType.ARRAY and field.types[1] != gguf.GGUFValueType.STRING:
            writer.add_key_value(key, value, kind, field.types[1])
        elif kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
    finish_copy(reader, writer)


def start(text_gguf: str, mmproj: str) -> Any:
    """A server in this process; it serves as long as it is referred to."""
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path, wanted.mmproj.path = text_gguf, mmproj
    wanted.n_ctx, wanted.n_parallel, wanted.warmup = 2048, 1, False
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 2
    return xllamacpp.Server(wanted)


def ask(address: str, picture: Path, question: str) -> dict[str, Any]:
    """The server's answer and its token counts."""
    data = base64.b64encode(picture.read_bytes()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "text", "text": question},
    ]
    body = {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": MOST_TOKENS,
        "cache_prompt": False,
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        answer = json.load(reply)
    return {"said": answer["choices"][0]["message"]["content"], "usage": answer.get("usage")}


def main(arguments: list[str]) -> None:
    if arguments[0] == "rename":
        rename(Path(arguments[1]), Path(arguments[2]))
        return
    text_gguf, mmproj, folder, name, out = arguments[1:6]
    count = int(arguments[6]) if len(arguments) > 6 else None
    examples = [Example(**e) for e in json.loads((Path(folder) / f"{name}.json").read_text())]
    server = start(text_gguf, mmproj)
    rows = []
    for e in examples[:count]:
        rows.append(
            {**asdict(e), **ask(server.listening_address, Path(folder) / e.image, e.question)}
        )
        print(json.dumps(rows[-1]), flush=True)
    Path(out).write_text(json.dumps(rows, indent=1))
    os._exit(0)  # the server's threads don't end by themselves


if __name__ == "__main__":
    main(sys.argv[1:])
