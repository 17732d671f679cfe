"""How long random tests run: DS4TUI_TEST_SCALE multiplies their example counts (default 1)."""

import os


def scaled(count: int) -> int:
    return max(1, round(count * float(os.environ.get("DS4TUI_TEST_SCALE", "1"))))
