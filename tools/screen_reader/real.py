"""Ask the screen reader of the package about real screenshots, through ds4tui itself.

    python -m tools.screen_reader.real

Writes the answers beside the questions in real/questions.json, and prints the scores. They were
taken of xterm 379 (DejaVu Sans Mono, and its own bitmap font), of zenity 3.44 (GTK 3) and of our
app's SVG export; none was left out, and training knows none of these programs' looks.
"""

import json
import threading
from dataclasses import replace
from pathlib import Path

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Image, Message
from ds4tui.config import load_settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.events import Event, Failed, Finished, TokenText
from ds4tui.opening import open_assistant
from tools.screen_reader.scoring import score

FOLDER = Path(__file__).parent / "real"
GREEDY = SamplingParams(temperature=0.0, max_tokens=64)


def answer(assistant: Assistant, png: str, question: str) -> str:
    said: list[str] = []
    done = threading.Event()

    def take(event: Event) -> None:
        if isinstance(event, TokenText):
            said.append(event.text)
        if isinstance(event, Finished | Failed):
            done.set()

    image = Image((FOLDER / png).read_bytes(), 0, png)
    assistant.chat([Message("user", question, images=(image,))], GREEDY, take)
    done.wait()
    return "".join(said).strip()


def main() -> None:
    path = FOLDER / "questions.json"
    asked = json.loads(path.read_text(encoding="utf-8"))
    settings = replace(load_settings({}), kv_disk="off")
    assistant = open_assistant("smollm2", settings, lambda words: None)
    try:
        for each in asked:
            each["answer"] = answer(assistant, each["png"], each["question"])
    finally:
        assistant.close()
    path.write_text(json.dumps(asked, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    rows = [(e["question"], e["truth"], e["png"].partition("_")[0]) for e in asked]
    print(json.dumps(score(rows, [e["answer"] for e in asked]), indent=1))


if __name__ == "__main__":
    main()
