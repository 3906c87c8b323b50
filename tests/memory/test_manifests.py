"""Manifests are kept by their key, replaced whole, and forgotten when they are old."""

import anyio

from guildry.memory.manifests import ManifestStore
from guildry.memory.store import Store


async def test_a_manifest_is_kept_by_its_key_and_replaced_by_the_next() -> None:
    with anyio.fail_after(10):
        async with Store.open(None) as store:
            manifests = ManifestStore(store)
            await manifests.put("one", "up", {"tools": [{"name": "a", "title": "\ud800 ü"}]})
            await manifests.put("two", "up", {"tools": []})
            await manifests.put("two", "renamed", {"tools": [1]})

            found = [await manifests.get(key) for key in ("one", "two", "three")]

    assert found == [{"tools": [{"name": "a", "title": "\ud800 ü"}]}, {"tools": [1]}, None]


async def test_a_manifest_of_long_ago_is_known_no_more_and_goes_with_the_next_one() -> None:
    with anyio.fail_after(10):
        async with Store.open(None) as store:
            manifests = ManifestStore(store)
            await manifests.put("old", "up", {})
            await store.write(
                lambda connection: connection.execute(
                    "UPDATE manifests SET listed_at = listed_at - 31 * 86400"
                )
            )
            found = await manifests.get("old")
            await manifests.put("new", "up", {})
            keys = await store.read(
                lambda connection: connection.execute("SELECT key FROM manifests").fetchall()
            )

    assert found is None
    assert keys == [("new",)]
