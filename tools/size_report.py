"""How long modules and functions are: places to look, printed by CI; nothing fails.

python tools/size_report.py
"""

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULE_LINES = 500
FUNCTION_LINES = 60
LONGEST = 10


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """(lines without the docstring, name) of each function of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = ast.get_docstring(node, clean=False) is not None
            about = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            length = (node.end_lineno or 0) - node.lineno + 1 - about
            yield length, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def report(folder: str) -> list[str]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    lengths = sorted(found for path in paths for found in functions(path))
    if not lengths:
        return [f"{folder}: empty"]
    counts = [count for count, _ in lengths]
    told = [
        f"{folder}: {len(paths)} modules, {sum(lines.values()):,} lines; "
        f"{len(counts):,} functions: median {statistics.median(counts):.0f} lines, "
        f"90 % under {counts[int(len(counts) * 0.9)]}, longest {counts[-1]}"
    ]
    told += [
        f"  module over {MODULE_LINES} lines: {path.relative_to(ROOT)} ({count})"
        for path, count in lines.items()
        if count > MODULE_LINES
    ]
    told += [
        f"  function over {FUNCTION_LINES} lines: {name} ({count})"
        for count, name in lengths[-LONGEST:]
        if count > FUNCTION_LINES
    ]
    return told


def main() -> int:
    for folder in ("ds4tui", "tests", "tools", "benchmarks"):
        print("\n".join(report(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
