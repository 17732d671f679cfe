"""The program, its packages, the device, memory, MLX, BLAS, twins and folders."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ds4tui import __version__
from ds4tui.cache.memory import available_memory_bytes
from ds4tui.config import Settings, config_path, log_path, state_path
from ds4tui.doctor.findings import Finding
from ds4tui.library.listing import gigabytes
from ds4tui.library.resolve import models_dir

# What reports are asked for most: the parts that compute, read, draw and serve.
PACKAGES = ("mlx", "numpy", "gguf", "tokenizers", "jinja2", "textual", "starlette", "uvicorn")
OPTIONAL = {
    "huggingface_hub": "`ds4tui pull owner/repo` needs it",
    "xllamacpp": "`ds4tui bench --against llama.cpp` needs it",
}
PYTHONS = ((3, 11), (3, 13))
LITTLE_MEMORY_BYTES = 10**9


def versions() -> Iterator[Finding]:
    python = platform.python_version()
    known = PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]
    yield Finding(
        "ok" if known else "warn",
        f"ds4tui {__version__}, Python {python} ({sys.executable})",
        "" if known else "Use Python 3.11, 3.12 or 3.13.",
        {"ds4tui": __version__, "python": python},
    )
    yield Finding("ok", platform.platform(), facts={"platform": platform.platform()})
    there = {name: version for name in PACKAGES if (version := _version(name))}
    yield Finding("ok", ", ".join(f"{name} {v}" for name, v in there.items()), facts=there)
    for name in PACKAGES:
        if name not in there:
            yield Finding("BAD", f"{name} is not installed", _install(name), {name: None})
    for name, what in OPTIONAL.items():
        version = _version(name)
        text = f"{name} {version}" if version else f"{name} is not installed: {what}"
        advice = "" if version else _install(name)
        yield Finding("ok" if version else "note", text, advice, {name: version})


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _install(package: str) -> str:
    return f"Run: {sys.executable} -m pip install {package}"


def device() -> Iterator[Finding]:
    """What computes, as MLX chose it."""
    from ds4tui.kernels.cpu.native.variants import runnable
    from ds4tui.kernels.cpu.threads import cpus

    core = _mlx_core()
    if isinstance(core, Finding):
        yield core
        return
    is_gpu = core.default_device().type == core.DeviceType.gpu
    facts: dict[str, Any] = {"device": "gpu" if is_gpu else "cpu", "cpus": cpus()}
    facts["cpu"], facts["isa"] = cpu_name(), [variant.name for variant in runnable()]
    sets = f", {', '.join(facts['isa'])}" if facts["isa"] else ""
    cores = f"{facts['cpu']}, {facts['cpus']} of {os.cpu_count()} CPUs usable{sets}"
    if not is_gpu:
        yield Finding("ok", f"CPU: {cores}", facts=facts)
        return
    about = core.device_info()
    facts |= {name: value for name, value in about.items() if isinstance(value, str | int)}
    name = about.get("device_name", "of unknown name")
    yield Finding("ok", f"GPU: {name}; beside it {cores}", facts=facts)


def cpu_name() -> str:
    """As the kernel or, on macOS, MLX calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def _mlx_core() -> Any:
    """mlx.core, or what to say if there is none."""
    try:
        import mlx.core as mx
    except (ImportError, OSError) as exc:
        return Finding("BAD", f"MLX cannot be used: {exc}", _mlx_advice())
    return mx


def _mlx_advice() -> str:
    if sys.platform == "darwin":
        return "MLX needs macOS 14 on Apple silicon, and a Python for arm64."
    return "MLX needs glibc 2.35: run `python3 tools/start.py`, or pip install 'mlx[cpu]'."


def memory() -> Iterator[Finding]:
    available, whole = available_memory_bytes(), physical_bytes()
    little = available < LITTLE_MEMORY_BYTES
    yield Finding(
        "note" if little else "ok",
        f"{gigabytes(available)} of {gigabytes(whole)} are available; what of it each model "
        "takes is told below",
        "Close other programs before a model is opened." if little else "",
        {"available_bytes": available, "physical_bytes": whole},
    )


def physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def mlx() -> Iterator[Finding]:
    core = _mlx_core()
    if isinstance(core, Finding):
        yield core
        return
    backends = {
        name: version
        for name in ("mlx-metal", "mlx-cuda-13", "mlx-cuda-12", "mlx-cpu")
        if (version := _version(name))
    }
    has_cuda = hasattr(core, "cuda") and core.cuda.is_available()
    has_metal = core.metal.is_available()
    built = ", ".join(f"{name} {version}" for name, version in backends.items()) or "no backend's"
    can = [name for name, there in (("Metal", has_metal), ("CUDA", has_cuda)) if there]
    facts = {"version": core.__version__, "backends": backends, "metal": has_metal}
    facts["cuda"] = has_cuda
    yield Finding(
        "ok",
        f"MLX {core.__version__} ({built} package), {' and '.join(can) or 'no GPU'}; computes on "
        f"{core.default_device()}",
        facts=facts,
    )
    if not can and sys.platform == "linux" and shutil.which("nvidia-smi"):
        yield Finding(
            "note",
            "an NVIDIA driver is here, but MLX's CUDA build is not or finds no GPU",
            f"{_install('mlx-cuda-13')} (the extra `cuda` of ds4tui)",
        )
    if not can and sys.platform == "darwin":
        yield Finding("warn", "MLX finds no Metal GPU", _mlx_advice())


def blas() -> Iterator[Finding]:
    import numpy as np

    from ds4tui.kernels.cpu.threads import workers

    config = np.show_config(mode="dicts")
    about = (config or {}).get("Build Dependencies", {}).get("blas", {})
    name, version = about.get("name", "unknown"), about.get("version", "")
    told = "openblas" in name
    threads = workers().threads
    if told:
        how = f"told to use one thread, ours share the rows ({threads})"
    else:
        how = "no OpenBLAS: it keeps its own threads"
    yield Finding(
        "ok",
        f"NumPy {np.__version__} multiplies with {name} {version}".rstrip() + f"; {how}",
        facts={"name": name, "version": version, "is_openblas": told, "threads": threads},
    )


def twins() -> Iterator[Finding]:
    """Each twin's verdict; checks those that were not checked yet."""
    from ds4tui.kernels import choice

    yield Finding("ok", f"models run as: {choice.current().path().words}")
    for twin in choice.report():
        use = "in use" if twin.in_use else "not used"
        yield Finding(
            "warn" if twin.is_fault else "ok",
            f"{twin.operation}: {twin.twin} is {use} ({twin.reason})",
            "The reference is used instead: right, but slower. Please report it, with "
            "`ds4tui selftest`." if twin.is_fault else "",
            {
                "operation": twin.operation,
                "twin": twin.twin,
                "in_use": twin.in_use,
                "verdict": twin.reason,
                "is_fault": twin.is_fault,
            },
        )  # fmt: skip


def folders(settings: Settings) -> Iterator[Finding]:
    for what, path in (
        ("settings", config_path()),
        ("state", state_path()),
        ("log", log_path()),
        ("conversations", settings.database_path),
        ("models", models_dir(settings.data_dir)),
        *([("KV states", settings.kv_dir)] if settings.kv_disk == "on" else []),
    ):
        holder = next(p for p in (path, *path.parents) if p.exists())
        writable = os.access(holder, os.W_OK)
        there = "" if path.exists() else " (not there yet)"
        # Settings are only read, and conversations are then kept in memory: the rest works.
        yield Finding(
            "ok" if writable or what == "settings" else "warn",
            f"{what}: {path}{there}" + ("" if writable else ", not writable"),
            "" if writable or what == "settings" else f"Make {holder} yours: chown, chmod.",
            {"what": what, "path": str(path), "exists": path.exists(), "writable": writable},
        )
