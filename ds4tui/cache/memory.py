"""How much memory there is, asked of the system before much is allocated.

Linux: MemAvailable, and the tightest memory limit of this process's control groups (version 2,
and 1 where it is still mounted). macOS: what vm_stat counts as free or free for the asking.
"""

import logging
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ds4tui.cache.pools import Pools, divide
from ds4tui.errors import OutOfMemory

log = logging.getLogger(__name__)


def available_memory_bytes() -> int:
    """Bytes of host memory that this process may still take without swapping. Never raises:
    where the system does not say, it is the size of the whole memory."""
    if sys.platform == "darwin":
        available = vm_stat_bytes(_vm_stat())
        return _physical_bytes() if available is None else available
    return linux_bytes(Path("/"))


def process_memory_bytes() -> tuple[int, int]:
    """Resident bytes of this process, now and at their peak: what it took, and the pages of
    mapped files that are in memory (the system may drop those). Where the system does not say
    how much it is now (macOS), both are the peak; never raises."""
    status = _text(Path("/proc/self/status"))
    resident, peak = (_number(_line(status, name)) for name in ("VmRSS:", "VmHWM:"))
    if resident is None or peak is None:
        peak_units = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak_bytes = peak_units if sys.platform == "darwin" else peak_units * 1024
        return peak_bytes, peak_bytes
    return resident * 1024, peak * 1024


def check_fits(what: str, needed_bytes: int, available_bytes: int) -> None:
    """Raise OutOfMemory, with both numbers, when `what` ("The model") cannot fit."""
    if needed_bytes > available_bytes:
        raise OutOfMemory(what, needed_bytes, available_bytes)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What of a model fits: `context_tokens` is the longest context, up to the wanted one, that
    fits beside the weights; 0 if the model does not fit at all. `needed_bytes` are of the wanted
    context. `pools` divides what there is among all that takes memory."""

    available_bytes: int
    weights_bytes: int
    needed_bytes: int
    wanted_tokens: int
    context_tokens: int
    pools: Pools

    @property
    def fits(self) -> bool:
        return self.context_tokens > 0

    @property
    def fits_whole(self) -> bool:
        return self.fits and self.context_tokens == self.wanted_tokens


# A context that memory cuts below this is of no use.
CONTEXT_TOKENS_MIN = 512


def plan_memory(
    available_bytes: int,
    weights_bytes: int,
    kv_bytes_per_token: int,
    context: int,
    kv_fixed_bytes: int = 0,
    *,
    sessions: int = 1,
    snapshot_bytes: int = 0,
    has_images: bool = False,
) -> MemoryPlan:
    """How much of a context of `context` tokens (1 or more) fits beside the weights, for each of
    `sessions` live states (1 or more), and how all memory is divided.

    Bytes are of memory, 0 or more; `kv_fixed_bytes` are what a state takes besides its rows
    (windows, recurrent states), `snapshot_bytes` what a copy of that takes. A context is cut to
    what fits, but not below CONTEXT_TOKENS_MIN (or the whole, if that is shorter): then the model
    does not fit.
    """
    if min(context, sessions) < 1 or min(available_bytes, weights_bytes, kv_bytes_per_token) < 0:
        raise ValueError("a plan needs a context of 1 or more and bytes of 0 or more")
    fixed, row_bytes = sessions * kv_fixed_bytes, sessions * kv_bytes_per_token
    room = available_bytes - weights_bytes - fixed
    fitting = context if row_bytes == 0 else min(context, room // row_bytes)
    if room < 0 or fitting < min(context, CONTEXT_TOKENS_MIN):
        fitting = 0
    needed = weights_bytes + fixed + context * row_bytes
    pools = divide(
        available_bytes,
        weights_bytes,
        fixed + fitting * row_bytes,
        has_snapshots=snapshot_bytes > 0,
        has_images=has_images,
    )
    return MemoryPlan(available_bytes, weights_bytes, needed, context, fitting, pools)


# -- Linux -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Controller:
    """What one version of control groups calls its folder and files."""

    folders: tuple[str, ...]
    limit: str
    used: str
    reclaimable: str  # a line of memory.stat: file cache that the kernel gives up first


_V2 = _Controller(
    ("sys/fs/cgroup", "sys/fs/cgroup/unified"), "memory.max", "memory.current", "inactive_file"
)
_V1 = _Controller(
    ("sys/fs/cgroup/memory",),
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)


def linux_bytes(root: Path) -> int:
    """The least of what the machine and its control groups leave, from /proc and /sys under
    `root`."""
    available = _number(_line(_text(root / "proc/meminfo"), "MemAvailable:"))
    machine = _physical_bytes() if available is None else available * 1024
    return min([machine, *_group_bytes(root)])


def _group_bytes(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0":
            controller = _V2
        elif "memory" in names.split(","):
            controller = _V1
        else:
            continue
        for folder in controller.folders:
            for group in _group_and_parents(root / folder, path):
                room = _room(group, controller)
                if room is not None:
                    yield room


def _group_and_parents(top: Path, path: str) -> Iterator[Path]:
    # Inside a container the path may be one of the host, of which only `top` is mounted.
    yield top
    steps = PurePosixPath(path).parts[1:]
    if ".." not in steps:
        for length in range(1, len(steps) + 1):
            yield top.joinpath(*steps[:length])


def _room(group: Path, controller: _Controller) -> int | None:
    limit = _number(_text(group / controller.limit))  # "max" is no number: no limit
    used = _number(_text(group / controller.used))
    if limit is None or used is None:
        return None
    reclaimable = _number(_line(_text(group / "memory.stat"), controller.reclaimable + " "))
    return max(0, limit - used + (reclaimable or 0))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _line(text: str, start: str) -> str:
    """What follows `start` on the line that begins with it."""
    for line in text.splitlines():
        if line.startswith(start):
            return line.removeprefix(start)
    return ""


def _number(text: str) -> int | None:
    found = re.match(r"\s*(\d+)", text)
    return int(found[1]) if found else None


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# -- macOS -------------------------------------------------------------------------------------

_FREE_FOR_THE_ASKING = ("free", "inactive", "speculative", "purgeable")


def _vm_stat() -> str:
    try:
        done = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError) as exc:
        log.warning("vm_stat failed (%s): the whole memory is taken for free", exc)
        return ""
    return done.stdout


def vm_stat_bytes(text: str) -> int | None:
    """Available bytes by the output of macOS's vm_stat; None if it is not understood."""
    page = re.search(r"page size of (\d+) bytes", text)
    counts = dict(re.findall(r"^Pages (\w+):\s+(\d+)\.", text, re.MULTILINE))
    if page is None or "free" not in counts:
        return None
    return int(page[1]) * sum(int(counts.get(name, 0)) for name in _FREE_FOR_THE_ASKING)
