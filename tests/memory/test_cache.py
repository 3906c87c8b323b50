"""The cache keeps to its bounds and forgets the right things."""

from hypothesis import given
from hypothesis import strategies as st

from guildry.memory.cache import Cache


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=60))
def test_a_cache_holds_what_was_used_last_up_to_its_weight(puts: list[tuple[int, int]]) -> None:
    cache: Cache[int, int] = Cache(10, 7)
    model: dict[int, int] = {}
    for key, weight in puts:
        cache.put(key, weight, weight)
        model.pop(key, None)
        if weight <= 7:
            model[key] = weight
        while sum(model.values()) > 10:
            del model[next(iter(model))]

        assert [cache.get(each) for each in list(model)] == list(model.values())


def test_what_is_looked_at_stays_and_what_is_dropped_goes() -> None:
    cache: Cache[str, int] = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    cache.drop("c")
    cache.drop("unknown")

    assert [cache.get(key) for key in "abc"] == [1, None, None]
