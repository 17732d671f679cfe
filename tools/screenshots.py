"""Make the pictures in screenshots/ from the running app.

    python tools/screenshots.py                  with the real model (`ds4tui pull smollm2` first)
    python tools/screenshots.py --fake           with a fake engine: for work on the layout

chat.svg is a chat whose second question reuses what is resident; narrow.svg the same at 80x24;
help.svg the commands; decisions.svg what another system prompt did to that chat; tree.svg the
branches that another answer made; disk.svg what is stored of it; agents.svg what a program asked
over HTTP; pictures.svg two questions about screenshots of tests/data; pull.svg the first start
without a model. --png makes chat.png as well, which the README shows where SVG is not drawn;
it needs rsvg-convert.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widgets import OptionList

from ds4tui.agents import Agents
from ds4tui.app import Ds4App
from ds4tui.assistant import Assistant
from ds4tui.chat.ledger import ConversationLedger
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings, load_settings
from ds4tui.errors import ModelNotFound
from ds4tui.pictures.paths import quoted
from ds4tui.serve import start_server
from ds4tui.tui.graphics import Way
from ds4tui.tui.messages import Notice
from ds4tui.tui.previews import Preview

FOLDER = Path(__file__).parent.parent / "screenshots"
WIDE, NARROW = (120, 40), (80, 24)
PNG_WIDTH = 1280
STEP_S = 0.05
TIMEOUT_S = 120.0
QUESTIONS = (
    "What is a prefix cache? Answer in two sentences.",
    "Give three reasons to use one, as a list.",
)
AGENT_SYSTEM = "You are a coding agent. Answer in one sentence."
AGENT_QUESTIONS = ("What does `git status` show?", "And `git diff`?")
SCREEN_FOLDER = FOLDER.parent / "tests" / "data" / "screen_reader"
SCREENS = (
    ("sample_01.png", "Which colour is the background?"),
    ("sample_04.png", "Is the theme dark or light?"),
)
# What the fake engine says; the real model speaks for itself.
FAKE_ANSWER = "A **prefix cache** keeps what was computed of a prompt.\n\n1. speed\n2. energy\n"

OpenModel = Callable[[str, Callable[[str], None]], Assistant]


def unused(*arguments: Any) -> Any:
    raise AssertionError(f"a picture needs none of {arguments}")


@asynccontextmanager
async def opened(
    settings: Settings, open_model: OpenModel, size: tuple[int, int]
) -> AsyncIterator[tuple[Ds4App, Pilot[None]]]:
    store = ConversationStore.in_memory()
    agents = Agents(ConversationLedger(store))
    app = Ds4App(
        settings,
        store,
        open_model,
        lambda assistant: start_server(assistant, settings, agents),
        unused,
        way=Way.BLOCKS,
        agents=agents,
    )
    async with app.run_test(size=size) as pilot:
        yield app, pilot
        await app.leave()


async def until(pilot: Pilot[None], holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            notices = [str(n.content) for n in pilot.app.query(Notice)]
            raise SystemExit("The app did not come to the next picture. " + " ".join(notices))
        await pilot.pause(STEP_S)
    await pilot.pause(2 * STEP_S)


async def ask(app: Ds4App, pilot: Pilot[None], question: str) -> None:
    app.chat_view._prompt.insert(question)
    await pilot.pause()
    await pilot.press("enter")
    await answered(app, pilot)


async def answered(app: Ds4App, pilot: Pilot[None]) -> None:
    await until(pilot, lambda: app.is_busy)
    await until(pilot, lambda: not app.is_busy)
    await until(pilot, lambda: app._poll is None or not app._poll._active.is_set())


def save(app: Ds4App, name: str) -> None:
    path = FOLDER / f"{name}.svg"
    path.write_text(app.export_screenshot(title="ds4tui") + "\n", encoding="utf-8")
    print(path.name)


def make_png(name: str) -> None:
    path = FOLDER / f"{name}.svg"
    # librsvg trims the spaces at the ends of a text element unless it is told not to.
    svg = path.read_text(encoding="utf-8").replace("<text ", '<text xml:space="preserve" ')
    png = str(path.with_suffix(".png"))
    command = ["rsvg-convert", "--width", str(PNG_WIDTH), "--output", png]
    subprocess.run(command, input=svg.encode(), check=True)


async def picture_chats(settings: Settings, open_model: OpenModel) -> None:
    for name, size in (("chat", WIDE), ("narrow", NARROW)):
        async with opened(settings, open_model, size) as (app, pilot):
            await until(pilot, lambda app=app: app._slot.assistant is not None)
            for question in QUESTIONS:
                await ask(app, pilot, question)
            save(app, name)
            if name == "chat":
                await pilot.press("f1")
                await pilot.pause(STEP_S)
                save(app, "help")
                await pilot.press("escape")
                await picture_tree(app, pilot)
                await picture_decisions(app, pilot)
                await picture_disk(app, pilot)
                await picture_agents(app, pilot)


async def picture_decisions(app: Ds4App, pilot: Pilot[None]) -> None:
    await app.acts.set_system("You are brief, and right.")
    await ask(app, pilot, "Once more, please.")
    await pilot.press("f3")
    await pilot.pause(STEP_S)
    save(app, "decisions")


async def picture_tree(app: Ds4App, pilot: Pilot[None]) -> None:
    await pilot.press("f8")
    await answered(app, pilot)
    await pilot.press("ctrl+t")
    await until(pilot, lambda: len(app.screen_stack) > 1)
    save(app, "tree")
    await pilot.press("escape")
    await pilot.pause(STEP_S)


async def picture_agents(app: Ds4App, pilot: Pilot[None]) -> None:
    """A program goes on with a conversation of its own: its second request reuses the first."""
    await pilot.press("f4")
    await until(pilot, lambda: app._server.url)
    history: list[dict[str, str]] = [{"role": "system", "content": AGENT_SYSTEM}]
    for question in AGENT_QUESTIONS:
        history.append({"role": "user", "content": question})
        reply = await asyncio.to_thread(asked_over_http, app._server.url, history)
        history.append({"role": "assistant", "content": reply})
    await pilot.press("f6")
    await until(pilot, lambda: app._agents.requests[0].state == "done")
    await until(pilot, lambda: app.screen.query_one("#agents-list", OptionList).option_count == 2)
    save(app, "agents")
    await pilot.press("f6", "f4")
    await until(pilot, lambda: not app._server.url)
    app.clear_notifications()


def asked_over_http(url: str, messages: list[dict[str, str]]) -> str:
    body = json.dumps({"messages": messages, "max_tokens": 40, "temperature": 0}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "opencode/1.0"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


async def picture_disk(app: Ds4App, pilot: Pilot[None]) -> None:
    assistant = app._slot.assistant
    if assistant is None or assistant.disk is None:
        return  # the fake engine has none
    await until(pilot, lambda: assistant.stats.conversations and not assistant.stats.is_storing)
    await pilot.press("f5")
    await pilot.pause(STEP_S)
    save(app, "disk")
    await pilot.press("f5")


async def picture_pictures(settings: Settings, open_model: OpenModel) -> None:
    async with opened(settings, open_model, WIDE) as (app, pilot):
        await until(pilot, lambda: app._slot.assistant is not None)
        for name, question in SCREENS:
            await app.chat_view.add_pictures(quoted(str(SCREEN_FOLDER / name)))
            await ask(app, pilot, question)
        await app.chat_view.add_pictures(quoted(str(SCREEN_FOLDER / "sample_03.png")))
        app.chat_view._prompt.insert("Which button is highlighted?")
        await until(pilot, lambda: sum(p.is_shown for p in app.query(Preview)) == len(SCREENS))
        save(app, "pictures")


async def picture_first_start(settings: Settings) -> None:
    def nothing_here(name: str, progress: Callable[[str], None]) -> Assistant:
        raise ModelNotFound(f"The model {name} is not on this machine yet.")

    async with opened(settings, nothing_here, WIDE) as (app, pilot):
        await until(pilot, lambda: len(app.screen_stack) > 1)
        save(app, "pull")


def real_model(settings: Settings) -> OpenModel:
    from ds4tui.opening import open_assistant

    return lambda name, progress: open_assistant(name, settings, progress)


def fake_model(name: str, progress: Callable[[str], None]) -> Assistant:
    sys.path.insert(0, str(FOLDER.parent))
    from tests.fakes import FakeAssistant

    return FakeAssistant(FAKE_ANSWER, token_delay_s=0.002, model=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", action="store_true", help="use a fake engine")
    parser.add_argument("--png", action="store_true", help="chat.png as well")
    parser.add_argument("--seed", type=int, default=7, help="of the real model's answers")
    chosen = parser.parse_args()
    os.environ.pop("NO_COLOR", None)  # a picture has colours
    flags = {"temperature": 0.2, "seed": chosen.seed, "max_tokens": 160}
    settings = load_settings(flags)
    with tempfile.TemporaryDirectory() as folder:
        # The person's own folders are only read: the theme of a picture is no choice of theirs.
        os.environ.update(DS4TUI_STATE_DIR=folder, DS4TUI_CONFIG_DIR=folder)
        os.chdir(folder)  # a picture shows no path of this machine
        settings = replace(settings, kv_disk_dir=Path("kv"))
        FOLDER.mkdir(exist_ok=True)
        open_model = fake_model if chosen.fake else real_model(settings)
        asyncio.run(picture_chats(settings, open_model))
        if not chosen.fake:
            seeing = replace(settings, temperature=0.0, max_tokens=12)
            asyncio.run(picture_pictures(seeing, real_model(seeing)))
        asyncio.run(picture_first_start(settings))
    if chosen.png:
        make_png("chat")


if __name__ == "__main__":
    main()
