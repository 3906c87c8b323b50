"""Token buckets, on a clock that the test turns."""

from hypothesis import given
from hypothesis import strategies as st

from guildry.server.http.limits import Bucket, Buckets

STEPS = st.lists(st.floats(0, 5, allow_nan=False), max_size=60)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(rate=st.floats(0.1, 50), burst=st.integers(1, 20), steps=STEPS)
def test_no_more_is_taken_than_the_burst_and_what_the_time_gives(
    rate: float, burst: int, steps: list[float]
) -> None:
    clock = Clock()
    bucket = Bucket(rate, burst, clock)
    taken = 0
    for step in steps:
        clock.now += step
        while not bucket.take():
            taken += 1

    assert taken <= burst + rate * sum(steps) + 0.01


@given(rate=st.floats(0.1, 50), burst=st.integers(1, 20), steps=STEPS)
def test_whoever_waits_as_long_as_was_said_gets_one(
    rate: float, burst: int, steps: list[float]
) -> None:
    clock = Clock()
    bucket = Bucket(rate, burst, clock)
    for step in [0.0, *steps]:
        clock.now += step
        while not (wait_s := bucket.take()):
            pass
        clock.now += wait_s

        assert bucket.take() == 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    clock = Clock()
    bucket = Bucket(1, 1, clock)
    assert bucket.take() == 0

    clock.now -= 50

    assert bucket.take() > 0


def test_each_name_has_its_own_bucket_and_the_oldest_is_forgotten() -> None:
    buckets = Buckets(1, 1, keep=2, clock=Clock())
    assert [buckets.take(name) for name in ("a", "b")] == [0, 0]
    assert buckets.wanting("a") > 0

    buckets.take("c")

    assert (buckets.wanting("a"), buckets.wanting("b") > 0) == (0, True)
