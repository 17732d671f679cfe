from ds4tui.advice import advice
from ds4tui.cache.causes import Cause


def test_every_cause_has_a_meaning_that_fits_a_panel() -> None:
    for cause in Cause:
        told = advice(cause.value)
        assert told is not None and told.meaning.endswith("."), cause
        assert not told.help or told.help.endswith(".")


def test_no_cause_and_an_unknown_one_have_none() -> None:
    assert advice(None) is None and advice("") is None and advice("the moon") is None
