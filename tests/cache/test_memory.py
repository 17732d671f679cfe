"""Available memory is the least of machine and control groups; both numbers are in the refusal."""

import resource
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache import memory
from ds4tui.cache.memory import (
    CONTEXT_TOKENS_MIN,
    available_memory_bytes,
    check_fits,
    linux_bytes,
    plan_memory,
    process_memory_bytes,
    vm_stat_bytes,
)
from ds4tui.errors import OutOfMemory
from tests.scale import scaled

MIB = 2**20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Linux machine with 8 GiB available and no control groups."""
    write(
        tmp_path, "proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB"
    )
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def limit_v2(root: Path, group: str, limit: int | str, used: int, cached: int = 0) -> None:
    write(root, f"sys/fs/cgroup{group}/memory.max", str(limit))
    write(root, f"sys/fs/cgroup{group}/memory.current", str(used))
    write(root, f"sys/fs/cgroup{group}/memory.stat", f"anon 5\ninactive_file {cached}\nfile 9")


def test_without_groups_it_is_what_the_machine_has(root: Path) -> None:
    assert linux_bytes(root) == 8192 * MIB


def test_a_group_limit_counts_less_what_is_used_but_for_idle_file_cache(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/app")
    limit_v2(root, "/user/app", 2048 * MIB, 1024 * MIB, 512 * MIB)
    assert linux_bytes(root) == 1536 * MIB


def test_the_tightest_of_the_group_and_its_parents_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/app")
    limit_v2(root, "/user/app", "max", 100 * MIB)
    limit_v2(root, "/user", 1024 * MIB, 900 * MIB)
    limit_v2(root, "", 4096 * MIB, 900 * MIB)
    assert linux_bytes(root) == 124 * MIB


def test_a_group_over_its_limit_leaves_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/")
    limit_v2(root, "", 100 * MIB, 101 * MIB)
    assert linux_bytes(root) == 0


def test_a_container_that_sees_only_its_own_group(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/../../docker/abc")
    limit_v2(root, "", 300 * MIB, 100 * MIB)
    assert linux_bytes(root) == 200 * MIB


def test_version_1_groups_count_too(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:cpu,memory:/job\n4:pids:/job\n0::/")
    folder = "sys/fs/cgroup/memory/job"
    write(root, f"{folder}/memory.limit_in_bytes", str(700 * MIB))
    write(root, f"{folder}/memory.usage_in_bytes", str(300 * MIB))
    write(root, f"{folder}/memory.stat", f"cache 1\ninactive_file 7\ntotal_inactive_file {MIB}")
    assert linux_bytes(root) == 401 * MIB


def test_unlimited_groups_and_odd_files_do_not_count(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/a\nnonsense\n3:memory:/a")
    limit_v2(root, "/a", "max", 1)
    write(root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", str(2**63 - 4096))
    write(root, "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5")
    assert linux_bytes(root) == 8192 * MIB


def test_a_system_that_says_nothing_counts_as_its_whole_memory(tmp_path: Path) -> None:
    assert linux_bytes(tmp_path) >= 64 * MIB


VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            500000.
Pages inactive:                           20000.
Pages speculative:                         3000.
Pages throttled:                              0.
Pages wired down:                        100000.
Pages purgeable:                            400.
"Translation faults":                 999999999.
Pages occupied by compressor:                 7.
"""


def test_vm_stat_counts_what_is_free_for_the_asking() -> None:
    assert vm_stat_bytes(VM_STAT) == 33_400 * 16_384


@pytest.mark.parametrize("text", ["", "nonsense", "Pages free: 5.", "page size of 4096 bytes"])
def test_vm_stat_that_is_not_understood_is_none(text: str) -> None:
    assert vm_stat_bytes(text) is None


def test_on_a_mac_vm_stat_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(memory, "_vm_stat", lambda: VM_STAT)
    assert available_memory_bytes() == 33_400 * 16_384
    monkeypatch.setattr(memory, "_vm_stat", lambda: "")
    assert available_memory_bytes() > 33_400 * 16_384


def test_this_machine_has_some_memory() -> None:
    assert 16 * MIB < available_memory_bytes() < 2**50


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    check_fits("The model", 5 * MIB, 5 * MIB)
    with pytest.raises(OutOfMemory, match="The model needs 6 MiB, 5 MiB are available") as caught:
        check_fits("The model", 6 * MIB, 5 * MIB)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (6 * MIB, 5 * MIB)


# -- plans -------------------------------------------------------------------------------------

sizes = st.integers(0, 2**44)
contexts = st.integers(1, 2**21)


@settings(max_examples=scaled(100))
@given(sizes, sizes, st.integers(0, 2**20), contexts, st.integers(0, 2**32))
def test_a_plan_grants_the_longest_context_that_fits(
    available: int, weights: int, per_token: int, context: int, fixed: int
) -> None:
    plan = plan_memory(available, weights, per_token, context, fixed)
    weights += fixed  # always there, as they are
    assert plan.needed_bytes == weights + context * per_token
    assert plan.fits_whole == (plan.needed_bytes <= available)
    least = min(context, CONTEXT_TOKENS_MIN)
    assert plan.fits == (weights + least * per_token <= available)
    if plan.fits:
        assert least <= plan.context_tokens <= context
        assert weights + plan.context_tokens * per_token <= available
        if plan.context_tokens < context:
            assert weights + (plan.context_tokens + 1) * per_token > available
    else:
        assert plan.context_tokens == 0 and not plan.fits_whole


def test_a_plan_by_numbers() -> None:
    # 1 GiB of weights, 128 KiB a token: 2 GiB leave room for 8,192 tokens.
    plan = plan_memory(2 * 2**30, 2**30, 2**17, 131_072)
    assert plan.context_tokens == 8192 and plan.fits and not plan.fits_whole
    assert plan.needed_bytes == 17 * 2**30
    assert plan_memory(17 * 2**30, 2**30, 2**17, 131_072).fits_whole
    assert plan_memory(2**30 + 511 * 2**17, 2**30, 2**17, 131_072).context_tokens == 0
    assert plan_memory(2**30 + 512 * 2**17, 2**30, 2**17, 131_072).context_tokens == 512
    assert plan_memory(2**30 + 100 * 2**17, 2**30, 2**17, 100).fits_whole


@pytest.mark.parametrize("numbers", [(1, 1, 1, 0), (-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1)])
def test_a_plan_of_impossible_numbers_is_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        plan_memory(*numbers)


def test_memory_of_this_process_grows_with_what_it_takes() -> None:
    before, _ = process_memory_bytes()
    taken = bytearray(b"x") * (64 * MIB)
    during, peak = process_memory_bytes()
    assert during - before > 32 * MIB
    assert peak >= during - 8 * MIB  # the kernel counts in batches
    del taken


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_memory_of_this_process_without_proc_is_its_peak(
    platform: str, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_text", lambda path: "")
    monkeypatch.setattr(sys, "platform", platform)
    resident, peak = process_memory_bytes()
    told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resident == peak == pytest.approx(told * unit, rel=0.1)
