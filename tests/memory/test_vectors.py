from pathlib import Path

from guildry.memory.store import Store
from guildry.memory.vectors import VectorStore


async def test_vectors_are_kept_by_model_and_digest(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "g.db") as store:
        vectors = VectorStore(store)
        many = {f"d{n}": bytes([n % 256]) for n in range(1_200)}
        await vectors.put("a", many)
        await vectors.put("b", {"d1": b"other"})
        await vectors.put("b", {"d1": b"newer"})

        assert await vectors.get("a", [*many, "unknown"]) == many
        assert await vectors.get("b", ["d1", "d2"]) == {"d1": b"newer"}
        assert await vectors.get("a", []) == {}


async def test_vectors_that_nothing_has_used_for_long_are_forgotten(tmp_path: Path) -> None:
    now = 100.0
    async with Store.open(tmp_path / "g.db") as store:
        vectors = VectorStore(store, clock=lambda: now)
        await vectors.put("a", {"old": b"1", "used": b"2"})
        now = 200.0
        await vectors.used("a", ["used"])

        assert await vectors.forget(before=150.0) == 1
        assert await vectors.get("a", ["old", "used"]) == {"used": b"2"}
