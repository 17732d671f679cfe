"""No test of the selftest sees the models, terminal or home of who runs it."""

from tests.doctor.conftest import own_home

__all__ = ["own_home"]
