"""ds4tui: a terminal-first local assistant that never computes a token twice without saying why."""

__version__ = "0.1.0"
