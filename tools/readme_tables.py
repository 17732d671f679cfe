"""The tables of README.md that are made from the code: commands, settings, keys of the app.

python tools/readme_tables.py           write them into README.md
python tools/readme_tables.py --check   say whether they are right (exit 1 if not)
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def commands() -> str:
    from ds4tui.cli import COMMANDS

    rows = [("`ds4tui`", "open the app"), ("`ds4tui -p TEXT`", "one question, one answer")]
    rows += [(f"`ds4tui {c.name}`", c.help) for c in COMMANDS]
    return table(("command", "what it does"), rows)


def settings() -> str:
    from ds4tui.config import Settings
    from ds4tui.config import table as fields
    from ds4tui.config_values import expected

    defaults = Settings()
    rows = []
    for f in fields():
        default = getattr(defaults, f.name)
        unset = default is None or f.name in ("data_dir", "kv_disk_dir")
        shown = "" if unset else f"`{list(default) if isinstance(default, tuple) else default!r}`"
        rows.append((f"`{f.name}`", shown.replace("'", '"'), f.metadata["help"], expected(f)))
    return table(("setting", "default", "what it is", "must be"), rows)


def keys() -> str:
    from ds4tui.tui.commands import COMMANDS, OTHER_KEYS
    from ds4tui.tui.shortcuts import OTHER_ACTIONS

    rows = [(shown_keys(c.keys), _in_cell(f"`{c.usage}`"), c.help) for c in COMMANDS]
    rows += [(shown_keys(keys.split(", ")), "", words) for keys, words in OTHER_KEYS]
    rows += [(shown_keys(keys), "", words) for keys, words in OTHER_ACTIONS.values()]
    return table(("key", "command", "what it does"), rows)


def shown_keys(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


TABLES: dict[str, Callable[[], str]] = {"commands": commands, "settings": settings, "keys": keys}


def with_tables(text: str) -> str:
    """`text` with each table between its two marks made anew."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, begin_found, rest = text.partition(begin)
        _, end_found, tail = rest.partition(end)
        if not begin_found or not end_found:
            raise SystemExit(f"README.md lacks the marks of {name}")
        text = f"{head}{begin}{make()}\n{end}{tail}"
    return text


def main() -> int:
    text = README.read_text(encoding="utf-8")
    wanted = with_tables(text)
    if "--check" in sys.argv[1:]:
        if text != wanted:
            print("README.md's tables are old: run python tools/readme_tables.py")
        return int(text != wanted)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
