"""`python -m ds4tui` is the `ds4tui` command."""

from ds4tui.cli import main

raise SystemExit(main())
