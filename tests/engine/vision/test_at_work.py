"""Jobs about pictures on the engine thread: each is encoded once, a step of its own, and one that
cannot be seen costs its job only."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.requests import GenerateRequest, SamplingParams
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.vision.held import HeldImages
from ds4tui.engine.vision.preprocess import Prepared
from ds4tui.engine.vision.projectors import Encoder
from ds4tui.engine.vision.recognition import Picture, Recogniser
from ds4tui.engine.worker import Engine
from ds4tui.errors import EngineError, UsageError
from ds4tui.events import Decision, EncodingProgress, Event, Failed, Finished, PrefillProgress
from ds4tui.kernels import choice
from tests.engine.vision.asking import ids_of, timeline_of
from tests.engine.vision.pictures import encoded, picture
from tests.fakes import EventLog
from tests.golden.files import golden_path, projector_path
from tests.parity.ours import load

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


class Bench:
    """An engine that sees, and what was asked of its encoder."""

    def __init__(self, **loaded: Any) -> None:
        self.images: HeldImages | None = None
        with GGUFFile.open(projector_path("idefics3")) as file:
            self.recognise = Recogniser(file, ids_of)

        def opened() -> LoadedModel:
            with GGUFFile.open(projector_path("idefics3")) as file:
                self.images = HeldImages(Encoder(file, choice.current().path(False)), name="eyes")
            with GGUFFile.open(golden_path("idefics3")) as file:
                tokenizer = Tokenizer.from_gguf(file)
            model = load(golden_path("idefics3"))
            values = {"chunk_sizes": (64, 32), "images": self.images} | loaded
            return LoadedModel("tiny", model, tokenizer, **values)

        self.engine = Engine(opened)
        self.engine.start()
        self.engine.wait_ready(60)

    def shot(self, turns: int) -> Picture:
        name = f"{turns}.png"
        return self.recognise(encoded(picture(30 + turns, 40).rotate(90 * turns)), name)

    def ask(self, *parts: Any, log: EventLog | None = None, **more: Any) -> list[Event]:
        log = log or EventLog()
        more.setdefault("pictures", tuple(p for p in parts if isinstance(p, Picture)))
        request = GenerateRequest(timeline_of(*parts), GREEDY, **more)
        assert self.engine.submit(request, log).wait(60)
        return list(log.events)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.engine.close()


def kinds(events: list[Event], *wanted: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, wanted)]


def text(words: str) -> list[int]:
    return list(words.encode())


def test_pictures_are_encoded_before_their_rows_and_told(bench: Bench) -> None:
    a, b = bench.shot(1), bench.shot(2)
    events = bench.ask(text("look "), a, text(" and "), b, text(" so?"))
    told = kinds(events, EncodingProgress)
    assert [(e.name, e.done, e.total) for e in told] == [("1.png", 1, 2), ("2.png", 2, 2)]
    order = [type(event) for event in events]
    assert order.index(Decision) < order.index(EncodingProgress) < order.index(PrefillProgress)
    stats = bench.engine.stats
    assert stats.encoder == "eyes" and stats.images_encoded == stats.images_held == 2
    assert 0 < stats.images_bytes <= stats.images_budget_bytes
    assert stats.encoding == told[-1]
    (done,) = kinds(events, Finished)
    assert done.usage.encode_ms == pytest.approx(sum(e.took_ms for e in told))
    assert bench.images is not None and not bench.images._pictures  # no file is kept


def test_a_second_turn_encodes_nothing_and_evaluates_no_row_of_a_picture(bench: Bench) -> None:
    a = bench.shot(1)
    first = bench.ask(text("look "), a, text(" so?"))
    again = bench.ask(text("look "), a, text(" so? and"), a)
    assert len(kinds(first, EncodingProgress)) == 1 and not kinds(again, EncodingProgress)
    (decision,) = kinds(again, Decision)
    assert decision.images == "match" and decision.kept > len(text("look ")) + a.block.rows
    assert bench.engine.stats.images_encoded == 1


def test_of_twenty_screenshots_each_is_decoded_and_encoded_once(bench: Bench) -> None:
    """A conversation that sends its whole history each turn, as files."""
    files = [encoded(picture(30 + i, 40)) for i in range(20)]
    for turn in (5, 10, 15, 20, 20):
        shots = [bench.recognise(data, f"{i}.png") for i, data in enumerate(files[:turn])]
        parts = [part for shot in shots for part in (text("."), shot)]
        (decision,) = kinds(bench.ask(*parts, text("?")), Decision)
        assert bench.recognise.decoded == bench.engine.stats.images_encoded == turn
        assert decision.evaluated <= 5 * (shots[0].block.rows + 1) + 1
    assert decision.evaluated == 1 and decision.images == "match"


def broken(picture: Picture, error: Exception) -> Picture:
    def load() -> Prepared:
        raise error

    return replace(picture, load=load)


def test_a_picture_that_cannot_be_read_fails_its_job_and_no_session(bench: Bench) -> None:
    a, b = bench.shot(1), bench.shot(2)
    bench.ask(text("look "), a, text(" so?"))
    error = UsageError("b.png is damaged.", "Save it anew.")
    events = bench.ask(text("look "), a, text(" so?"), broken(b, error), text("!"))
    (failed,) = kinds(events, Failed)
    assert failed.error is error
    kept = bench.ask(text("look "), a, text(" so?"), b, text("!"))
    (decision,) = kinds(kept, Decision)
    assert decision.kept == len(timeline_of(text("look "), a, text(" so?")))
    assert kinds(kept, Finished)


def test_an_encoder_that_fails_is_told_in_words(bench: Bench) -> None:
    a = bench.shot(1)
    events = bench.ask(text("look "), broken(a, RuntimeError("no such kernel")), text("?"))
    (failed,) = kinds(events, Failed)
    assert isinstance(failed.error, EngineError) and "no such kernel" in failed.error.message
    assert kinds(bench.ask(text("look "), a, text("?")), Finished)


def test_a_picture_that_was_not_sent_is_told(bench: Bench) -> None:
    events = bench.ask(text("look "), bench.shot(1), text("?"), pictures=())
    (failed,) = kinds(events, Failed)
    assert "was not given" in failed.error.message
    assert kinds(bench.ask(text("hello")), Finished)


def test_a_job_is_cancelled_between_its_pictures(bench: Bench) -> None:
    shots = [bench.shot(turns) for turns in range(4)]
    log = EventLog()

    def cancel(event: Event) -> None:
        log(event)
        if isinstance(event, EncodingProgress) and event.done == 2:
            job.cancel()

    request = GenerateRequest(timeline_of(text("x"), *shots), GREEDY, pictures=tuple(shots))
    job = bench.engine.submit(request, cancel)
    assert job.wait(60)
    (done,) = kinds(list(log.events), Finished)
    assert done.stop_reason == "cancelled"
    assert bench.engine.stats.images_encoded == 2
    bench.ask(text("x"), *shots)
    assert bench.engine.stats.images_encoded == 4


def test_a_model_that_sees_nothing_says_so() -> None:
    blind = Bench(images=None)
    try:
        shot = blind.shot(1)
        (failed,) = kinds(blind.ask(text("look "), shot), Failed)
        assert "sees no pictures" in failed.error.message
        assert blind.engine.stats.encoder == ""
    finally:
        blind.engine.close()


def test_pictures_that_do_not_fit_their_budget_together_are_encoded_once_all_the_same(
    bench: Bench,
) -> None:
    """Those of one chunk are held until it is evaluated."""
    shots = [bench.shot(turns) for turns in range(3)]
    bench.ask(text("x"), *shots, text("?"))
    assert bench.images is not None
    bench.images.budget_bytes = 1
    again = bench.ask(text("y"), *shots, text("?"))
    assert kinds(again, Finished)[0].token_ids
    bench.ask(text("z"), *shots, text("?"))
    assert bench.images.encoded <= 3 + 2 + 3  # one was held before each
    assert bench.images.held == 1 and not bench.images._needed
