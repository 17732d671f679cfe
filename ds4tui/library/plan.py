"""`ds4tui models show --plan NAME`: what a model takes and how long a context memory allows."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from ds4tui.config import Settings
from ds4tui.config_values import size_bytes
from ds4tui.errors import ConfigError
from ds4tui.library.listing import megabytes
from ds4tui.library.resolve import resolve_model

if TYPE_CHECKING:
    from ds4tui.engine.plan import BytesPlan


def show_plan(settings: Settings, name: str, memory: str | None, as_json: bool, out: TextIO) -> int:
    """Print the plan, for `memory` (a size in words; None: what this machine has now); 0.

    Raises ConfigError for a size that is none, ModelNotFound, and GGUFError for a file that is
    not read or damaged.
    """
    from ds4tui.engine.device_memory import available_bytes
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.engine.paging import LoadWish
    from ds4tui.engine.plan import plan_bytes

    asked = _asked(memory)
    with GGUFFile.open(resolve_model(name, settings.data_dir)) as gguf:
        memory_bytes = available_bytes() if asked is None else asked
        wish = LoadWish(expert_cache_bytes=settings.expert_cache_bytes)
        plan = plan_bytes(gguf, memory_bytes, settings.weights_policy(), wish)
    text = json.dumps(asdict(plan)) if as_json else "\n".join(_lines(plan))
    print(text, file=out)
    return 0


def _asked(memory: str | None) -> int | None:
    if memory is None:
        return None
    nbytes = size_bytes(memory)
    if nbytes is None or nbytes < 1:
        raise ConfigError(f"{memory!r} is no size of memory.", "Give it as 16GiB or 16000000000.")
    return nbytes


def _lines(plan: "BytesPlan") -> Iterator[str]:
    experts = f", of which {megabytes(plan.experts_bytes)} are of experts"
    yield (
        f"weights   {megabytes(plan.weights_bytes)}{experts if plan.experts_bytes else ''}; "
        f"loading needs {megabytes(plan.loading_bytes)}"
    )
    if plan.paging is not None:
        yield f"experts   {plan.paging.words}"
    yield f"a token   {plan.state.token:,} bytes in layers that keep all rows"
    yield f"snapshot  {plan.state.snapshot:,} bytes"
    if plan.state.slack:
        yield f"slack     {plan.state.slack:,} bytes a row that windows keep to go back by"
    if plan.longest_tokens:
        longest = f"{plan.longest_tokens:,} of the model's own {plan.own_tokens:,} tokens"
        yield f"context   {longest} fit in {megabytes(plan.memory_bytes)}"
    else:
        yield f"context   none: it does not fit in {megabytes(plan.memory_bytes)}"
