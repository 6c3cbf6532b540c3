import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_assembly import ConfigurationError
from otel_assembly.tokens import CalibratedCounter, TokenMeter


class Letters:
    name = "letters"
    method = "exact"
    generation = 0

    def count(self, text):
        return len(text)


def calibrated(initial_ratio=1.0):
    return CalibratedCounter("claude-x", Letters(), initial_ratio)


PROMPT = "x" * 1000


def bill(counter, true_ratio):
    """One model call whose provider counts `true_ratio` tokens a letter."""
    return counter.observe(counter.count(PROMPT), round(1000 * true_ratio))


def test_is_estimated_until_usage_was_observed():
    counter = calibrated()
    assert (counter.method, counter.count("abc"), counter.name) == ("estimated", 3, "letters")
    assert counter.observe(1000, 1010)
    assert counter.method == "calibrated"


@example(4.21, 4.0)
@given(st.floats(0.25, 4.5), st.floats(0.25, 4.5))
def test_comes_within_five_percent_of_what_is_billed(initial_ratio, true_ratio):
    counter = calibrated(initial_ratio)
    for _ in range(3):
        bill(counter, true_ratio)
    assert abs(counter.count(PROMPT) - 1000 * true_ratio) <= 0.05 * 1000 * true_ratio + 2  # both are rounded


def test_counted_is_in_the_units_of_the_ratio_in_use():
    counter = calibrated()
    for _ in range(20):
        bill(counter, 1.3)
    assert counter.count(PROMPT) == 1300
    assert counter.generation == 1


def test_a_difference_within_five_percent_changes_nothing():
    counter = calibrated()
    bill(counter, 1.2)
    for true_ratio in (1.25, 1.16, 1.24, 1.2, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25):
        bill(counter, true_ratio)
    assert (counter.generation, counter.count(PROMPT)) == (1, 1200)
    assert counter.learned_ratio == pytest.approx(1.25, rel=0.01)


def test_a_single_outlier_changes_nothing():
    counter = calibrated()
    bill(counter, 1.2)
    bill(counter, 4.0)
    bill(counter, 1.2)
    assert (counter.generation, counter.count(PROMPT)) == (1, 1200)


def test_an_outlier_at_the_very_first_is_overruled():
    counter = calibrated()
    for true_ratio in (4.0, 1.2, 1.2):
        bill(counter, true_ratio)
    assert counter.count(PROMPT) == 1200


def test_follows_a_lasting_change():
    counter = calibrated()
    for true_ratio in (1.2,) * 9 + (1.5,) * 5:
        bill(counter, true_ratio)
    assert counter.count(PROMPT) == 1500


@pytest.mark.parametrize(
    ("counted", "billed"),
    [(0, 100), (100, 0), (-5, 10), (10, -5), (100, 19), (100, 501), (100, float("nan")), (100, None), (100, True)],
)
def test_nonsense_is_ignored(counted, billed):
    counter = calibrated()
    assert not counter.observe(counted, billed)
    assert (counter.method, counter.generation, counter.ratio) == ("estimated", 0, 1.0)


def test_a_count_from_before_a_change_can_say_so():
    counter = calibrated()
    counted, generation = counter.count(PROMPT), counter.generation
    bill(counter, 2.0)
    for _ in range(8):
        counter.observe(counted, 2000, generation=generation)
    assert (counter.count(PROMPT), counter.generation) == (2000, 1)


def test_rounds_up_but_not_for_the_sake_of_binary_fractions():
    assert calibrated(1.1).count("x" * 100) == 110
    assert calibrated(1.1).count("x") == 2
    assert calibrated(1.1).count("") == 0


@pytest.mark.parametrize("ratio", [0, -1, 0.19, 5.1, float("nan"), float("inf"), "1", True])
def test_an_impossible_initial_ratio_is_refused(ratio):
    with pytest.raises(ConfigurationError, match="initial_ratio"):
        calibrated(ratio)


def test_a_meter_counts_anew_after_a_change():
    counter = calibrated()
    meter = TokenMeter(counter)
    before = meter.key
    assert (meter.text(PROMPT), meter.method) == (1000, "estimated")
    bill(counter, 1.5)
    assert (meter.text(PROMPT), meter.method) == (1500, "calibrated")
    assert meter.key != before


def test_many_threads_observe_without_losing_the_ratio():
    counter = calibrated()
    threads = [threading.Thread(target=lambda: [bill(counter, 1.4) for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(9):
        bill(counter, 1.4)
    assert counter.count(PROMPT) == pytest.approx(1400, rel=0.051)
