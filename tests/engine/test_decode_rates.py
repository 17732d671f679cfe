from ds4tui.engine.decode_rates import RATES_KEPT, DecodeRates


def rates_of(times_s: list[float]) -> DecodeRates:
    at = iter(times_s)
    rates = DecodeRates(lambda: next(at))
    for _ in times_s:
        rates.decoded()
    return rates


def test_a_rate_is_of_a_second_or_of_the_first_token_behind_it() -> None:
    rates = rates_of([0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 3.0])
    assert rates.last == (4.0, 1.0)


def test_what_rests_between_is_no_slow_second() -> None:
    at = iter([0.0, 0.5, 100.0, 100.5, 101.0])
    rates = DecodeRates(lambda: next(at))
    rates.decoded()
    rates.decoded()
    rates.rested()
    assert rates.last == ()
    for _ in range(3):
        rates.decoded()
    assert rates.last == (2.0,)


def test_the_last_ones_are_kept() -> None:
    assert len(rates_of([float(n) for n in range(RATES_KEPT + 9)]).last) == RATES_KEPT
