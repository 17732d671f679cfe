"""Tiny models with known answers; see README.md, and files.py for how tests read them."""

from tests.golden.files import families, golden, golden_path, projector_path

__all__ = ["families", "golden", "golden_path", "projector_path"]
