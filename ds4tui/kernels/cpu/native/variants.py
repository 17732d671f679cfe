"""The instruction sets that the kernels are written for, and which of them this CPU has."""

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variant:
    """`needs` are names of Linux's /proc/cpuinfo; `flags` are for g++ and clang++."""

    name: str
    machines: tuple[str, ...]
    needs: frozenset[str]
    flags: tuple[str, ...]


_X86 = ("x86_64", "AMD64")
_ARM = ("aarch64", "arm64")

# The best first.
VARIANTS = (
    Variant(
        "AVX-512",
        _X86,
        frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c"}),
        ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
    ),
    Variant("AVX2", _X86, frozenset({"avx2", "fma", "f16c"}), ("-mavx2", "-mfma", "-mf16c")),
    Variant("NEON", _ARM, frozenset(), ()),
)


@cache
def cpu_features() -> frozenset[str]:
    """What the kernel says this CPU has; empty where it does not say (macOS)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    return frozenset(flags.split(":", 1)[1].split())


def runnable() -> list[Variant]:
    """The variants that this machine can run, the best first."""
    here = [v for v in VARIANTS if platform.machine() in v.machines]
    return [v for v in here if v.needs <= cpu_features()]
