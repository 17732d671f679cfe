"""Qwen2.5-Coder and Gemma 3 as llama.cpp runs them, in the ways of test_real_model.py.

The files are mixtures of Q4_K, Q5_0, Q6_K and Q8_0. Of the file as it is, llama.cpp rounds
activations to 8 bits where we do not; of the same weights in float32 it rounds only Gemma's GELU.
Token ids are llama.cpp's own.

Measured: in float32 Qwen's texts are the same throughout. llama.cpp's log-probabilities are higher
than ours by 5.1e-4 for every token (standard deviation 1.7e-4), however we compute ours: its server
adds 151,936 probabilities up in float32.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from ds4tui.cache.timeline import Timeline
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.decoder import DecoderModel
from ds4tui.engine.models.registry import FAMILIES, Model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.session import Session
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.kernels import choice
from tests.parity.dequantised import write_dequantised
from tests.parity.llamacpp import LlamaCpp
from tests.parity.ours import load
from tests.parity.test_real_model import PASSAGE, check_greedy
from tests.parity.three_way import log_softmax

pytestmark = pytest.mark.dev_models

# What the model's template makes of one tool.
TOOL_PROMPT = """<|im_start|>system
You are a helpful assistant.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", \
"properties": {"city": {"type": "string"}}, "required": ["city"]}}}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
<|im_start|>user
What is the weather in Paris?<|im_end|>
<|im_start|>assistant
"""
PROMPTS = {
    "qwen": (
        "def fibonacci(n):\n",
        "import numpy as np\n\ndef softmax(x):",
        "<|im_start|>user\nWrite a C function that reverses a string.<|im_end|>\n"
        "<|im_start|>assistant\n",
        TOOL_PROMPT,
    ),
    "gemma": (
        "The capital of France is",
        "Water boils at",
        "Once upon a time, in a small village by the sea,",
        "def fibonacci(n):\n",
    ),
}
NEW_TOKENS = 32
CHUNK = 64
LONG_TEXT = Path(__file__).parents[1] / "golden" / "README.md"


@dataclass(frozen=True)
class Pair:
    """One model here and in llama.cpp, and how far apart they may be."""

    name: str
    path: Path
    ours: Model
    server: LlamaCpp
    near_tie: float  # largest gap of two tokens, in nats, that may change places
    perplexity: float  # largest relative difference


# By model and form of llama.cpp's weights: near ties and perplexity.
LIMITS = {
    ("qwen", "as it is"): (0.5, 0.01),
    ("qwen", "in float32"): (0.002, 0.001),
    ("gemma", "as it is"): (0.5, 0.01),
    ("gemma", "in float32"): (0.05, 0.001),
}


@pytest.fixture(scope="module", params=LIMITS, ids=", ".join)
def pair(
    request: pytest.FixtureRequest,
    dev_model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    name, form = request.param
    folder, path = tmp_path_factory.mktemp("llamacpp"), dev_model(name)
    theirs = path if form == "as it is" else folder / "float32.gguf"
    if theirs != path:
        write_dequantised(path, theirs)
    try:
        with LlamaCpp(theirs, folder / "log") as server:
            yield Pair(name, path, load(path), server, *LIMITS[request.param])
    finally:
        if theirs != path:
            theirs.unlink()  # gigabytes, which pytest would keep


@pytest.mark.parametrize("number", range(4))
def test_greedy_text_is_llama_cpps(pair: Pair, number: int) -> None:
    ids = pair.server.tokenize(PROMPTS[pair.name][number])
    choices = pair.server.greedy(ids, NEW_TOKENS)
    assert len(choices) >= 10
    check_greedy(Session(pair.ours), ids, choices, pair.near_tie)


def test_qwen_asks_for_the_tool(dev_model: Callable[[str], Path]) -> None:
    """This model leaves the tags away that it is told to use."""
    path = dev_model("qwen")
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    session, text = Session(load(path)), ""
    prefill = session.sync(Timeline.of(tokenizer.encode(TOOL_PROMPT, special=True)))
    while not prefill.finished:
        prefill.step(512)
    logits = prefill.logits
    for _ in range(NEW_TOKENS):
        token = int(logits.argmax())
        if tokenizer.is_control(token):
            break
        text += tokenizer.decode([token])
        logits = session.append(token)
    assert json.loads(text) == {"name": "get_weather", "arguments": {"city": "Paris"}}


def relative_perplexity(pair: Pair, model: Model, ids: list[int], lengths: range) -> float:
    """Ours over llama.cpp's, less 1, of the tokens behind prefixes of these lengths."""
    theirs = [pair.server.next_choice(ids[:n], ids[n]).logprob for n in lengths]
    ours = own_log_probabilities(model, ids, lengths)
    return float(np.exp(np.mean(theirs) - np.mean(ours))) - 1


def own_log_probabilities(model: Model, ids: list[int], lengths: range) -> list[float]:
    """Of the token behind each prefix. A few rows at a time: each has the whole vocabulary."""
    state, found = model.new_state(), []
    for start in range(0, lengths[-1], CHUNK):
        part = ids[start : min(start + CHUNK, lengths[-1])]
        rows = np.asarray(model.forward(Rows.of_ids(part, start, "all"), state))
        ends = [n for n in lengths if start < n <= start + len(part)]
        found += [float(log_softmax(rows[n - 1 - start])[ids[n]]) for n in ends]
    assert len(found) == len(lengths)
    return found


def test_perplexity_is_llama_cpps(pair: Pair) -> None:
    ids = pair.server.tokenize(PASSAGE.read_text())
    assert len(ids) > 200
    relative = relative_perplexity(pair, pair.ours, ids, range(1, len(ids)))
    assert abs(relative) <= pair.perplexity, f"perplexities differ by {relative:.2%}"


def test_a_long_text_has_llama_cpps_perplexity(pair: Pair) -> None:
    """Gemma's window is 512 rows. A window one row longer is not seen here (the tiny model's is,
    in test_faults.py); none at all is."""
    ids = pair.server.tokenize(LONG_TEXT.read_text())[:900]
    lengths = range(600, 890, 10)
    relative = relative_perplexity(pair, pair.ours, ids, lengths)
    assert abs(relative) <= pair.perplexity, f"perplexities differ by {relative:.2%}"
    if pair.name == "gemma":
        assert abs(relative_perplexity(pair, without_window(pair.path), ids, lengths)) > 0.02


def without_window(path: Path) -> DecoderModel:
    with GGUFFile.open(path) as file:
        config = FAMILIES[file.architecture].config(file)
        blocks = tuple(replace(shape, window=None) for shape in config.blocks)
        config = replace(config, blocks=blocks)
        return DecoderModel(config, file, choice.current().path(), config.context_tokens)
