"""The matrix of vectors: after any changes as near as reckoned one by one."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from guildry.tools.finding.index import ToolIndex
from guildry.tools.finding.vectors import Vectors
from guildry.tools.registry import Catalog

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=80)


def vector_of(row: int) -> Any:
    return np.random.default_rng(row).standard_normal(8).astype(np.float32)


def near(query: Any, rows: set[int]) -> dict[int, float]:
    """Return how near each row is, with half of what all have in common taken out."""
    unit = {row: vector_of(row) / np.linalg.norm(vector_of(row)) for row in rows}
    common = 0.5 * sum(unit.values()) / (len(rows) + 20)
    return {
        row: float((each - common) @ query / np.linalg.norm(each - common))
        for row, each in unit.items()
    }


@given(CHANGES, st.integers(100, 110), st.integers(1, 10))
def test_after_any_changes_the_nearest_rows_are_found(
    changes: list[tuple[bool, int]], asked: int, limit: int
) -> None:
    vectors, held = Vectors(), set[int]()
    for comes, row in changes:
        if comes and row not in held:
            vectors.put(row, vector_of(row))
            held.add(row)
        elif not comes:
            vectors.drop(row)
            held.discard(row)

    assert len(vectors) == len(held)
    assert all((row in vectors) == (row in held) for row in range(41))
    if not held:
        return
    expected = near(vector_of(asked), held)
    meaning = vectors.meaning(vector_of(asked))
    found = meaning.of([*held, 99])
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[r] for r in held], [expected[r] for r in held], atol=1e-4)
    odd = [row for row in sorted(held, key=lambda each: -found[each]) if row % 2]
    assert meaning.nearest(limit, lambda row: row % 2 == 1) == odd[:limit]


async def test_without_an_embedder_there_is_nothing_to_learn() -> None:
    index = ToolIndex(Catalog())

    assert await index.learn() == 0
    await index.run()
    await index.aclose()
