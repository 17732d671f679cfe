"""Memory of a program that is measured, where the system tells it."""

import re
import subprocess
from pathlib import Path


def device_peak_bytes() -> int | None:
    """The most that MLX took on the GPU; None on a CPU, where the process's own peak says all."""
    import mlx.core as mx

    if mx.default_device().type != mx.DeviceType.gpu:
        return None
    return int(mx.get_peak_memory())


def resident_bytes_of(process_id: int) -> int | None:
    """Resident bytes of another process at their peak so far; where only the present ones are
    told (macOS) those. None if the system does not say."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return _resident_by_ps(process_id)
    peak = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    return int(peak[1]) * 1024 if peak else None


def _resident_by_ps(process_id: int) -> int | None:
    command = ["ps", "-o", "rss=", "-p", str(process_id)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return int(done.stdout) * 1024
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
