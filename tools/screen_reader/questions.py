"""The questions that every kind of scene can be asked."""

import random


def ask(r: random.Random, *wordings: str) -> str:
    return r.choice(wordings)


def read_everything(r: random.Random) -> str:
    return ask(
        r,
        "What does this screenshot say?",
        "What does this screenshot say?",
        "Read the text in this screenshot.",
        "Transcribe the text in this image.",
        "What text is shown?",
    )


def ask_background(r: random.Random) -> str:
    return ask(
        r,
        "What is the background colour?",
        "What is the background color?",
        "Which colour is the background?",
    )


def ask_theme(r: random.Random) -> str:
    return ask(r, "Is this a dark or a light theme?", "Is the theme dark or light?")


def ask_kind(r: random.Random) -> str:
    return ask(r, "What kind of screenshot is this?", "What is this a screenshot of?")


def ask_error(r: random.Random) -> str:
    return ask(
        r,
        "What is the error?",
        "What is the error?",
        "What error is shown?",
        "What does the error say?",
    )
