"""Manifests come back from JSON as they were; keys differ where lists may, and hide values."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from guildry.tools.mcp.manifest import Endpoint, Manifest
from guildry.tools.plugs.options import SandboxOptions
from guildry.tools.plugs.plug import Quarantined

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)
DEFINITIONS = st.lists(OBJECTS, max_size=3).map(tuple)
MANIFESTS = st.builds(
    Manifest,
    protocol=st.text(),
    server=OBJECTS,
    capabilities=OBJECTS,
    instructions=st.text(),
    tools=DEFINITIONS,
    prompts=DEFINITIONS,
    resources=DEFINITIONS,
    templates=DEFINITIONS,
    left_out=st.lists(st.builds(Quarantined, st.text(), st.text()), max_size=2).map(tuple),
)


@given(MANIFESTS)
def test_a_manifest_comes_back_from_its_json(manifest: Manifest) -> None:
    kept = json.loads(json.dumps(manifest.as_json()))

    assert Manifest.from_json(kept) == manifest


@given(OBJECTS)
def test_what_was_kept_in_another_form_is_no_manifest(kept: dict[str, Any]) -> None:
    assert Manifest.from_json({**kept, "format": 0}) is None


def test_a_key_differs_where_the_list_may() -> None:
    endpoints = [
        Endpoint(url="http://a/mcp"),
        Endpoint(url="http://b/mcp"),
        Endpoint(url="http://a/mcp", headers={"X": "1"}),
        Endpoint(url="http://a/mcp", headers={"X": "2"}),
        Endpoint(command=("a", "b")),
        Endpoint(command=("a b",)),
        Endpoint(command=("a", "b"), env={"X": "1"}),
        Endpoint(command=("a", "b"), folder=Path("/elsewhere")),
        Endpoint(command=("a", "b"), sandbox=SandboxOptions()),
        Endpoint(command=("a", "b"), sandbox=SandboxOptions(network=True)),
    ]

    assert len({each.key for each in endpoints}) == len(endpoints)
    assert Endpoint(command=("a",), env={"X": "1", "Y": "2"}).key == (
        Endpoint(command=("a",), env={"Y": "2", "X": "1"}).key
    )


def test_what_a_server_is_given_in_confidence_is_not_shown_with_its_endpoint() -> None:
    endpoint = Endpoint(url="http://a/mcp", headers={"X": "abcdefgh-1234"}, env={"Y": "ijkl-5678"})

    assert "abcdefgh-1234" not in repr(endpoint)
    assert "ijkl-5678" not in repr(endpoint)
