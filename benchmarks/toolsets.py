"""Tool definitions to fill servers with: from the retrieval sets where they are, else made up."""

import json
import os
import random
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT

Definition = dict[str, Any]

SETS = Path(os.environ.get("GUILDRY_TOOL_SETS", ROOT.parent / "shared" / "data"))
"""The folder of the retrieval sets (JSON Lines)."""

_TYPES = (
    dict.fromkeys(("dict", "HashMap", "Hashtable"), "object")
    | dict.fromkeys(("tuple", "Array", "ArrayList", "Queue", "Stack"), "array")
    | dict.fromkeys(("float", "double"), "number")
    | dict.fromkeys(("long", "byte", "short", "Bigint"), "integer")
    | dict.fromkeys(("String", "char"), "string")
    | {"Boolean": "boolean", "Any": "any"}
)
_VERBS = ("list", "get", "create", "update", "delete", "search", "export", "merge", "convert")
_THINGS = ("invoice", "branch", "calendar", "ticket", "photo", "customer", "sensor", "recipe")
_PLACES = ("warehouse", "archive", "repository", "account", "project", "inbox", "workspace")


def definitions(count: int, seed: int = 1) -> list[Definition]:
    """Return so many definitions, in the form of MCP, each name once."""
    file = SETS / "bfcl_tools.jsonl"
    rows = _read(file) if file.exists() else _made_up(count, seed)
    chosen: dict[str, Definition] = {}
    for row in random.Random(seed).sample(rows, len(rows)):
        name = "".join(c if c.isalnum() or c in "_-" else "_" for c in row["name"])[:48]
        schema = {**_plain(row["input_schema"]), "type": "object"}
        chosen.setdefault(
            name, {"name": name, "description": row["description"], "inputSchema": schema}
        )
        if len(chosen) == count:
            break
    return list(chosen.values())


def _plain(schema: Any) -> Any:
    """Return a schema with the types of JSON Schema where the set has those of Python."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) for key, value in schema.items()}
    if isinstance(plain.get("type"), str):
        plain["type"] = _TYPES.get(plain["type"], plain["type"])
        if plain["type"] == "any":
            del plain["type"]
    return plain


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]


def _made_up(count: int, seed: int) -> list[dict[str, Any]]:
    words = [(v, t, p) for v in _VERBS for t in _THINGS for p in _PLACES]
    random.Random(seed).shuffle(words)
    return [
        {
            "name": f"{verb}_{thing}_{place}_{n}",
            "description": f"{verb.title()} the {thing} of one {place}, number {n}, as a table.",
            "input_schema": {"properties": {thing: {"type": "string", "description": place}}},
        }
        for n in range(count)
        for verb, thing, place in [words[n % len(words)]]
    ]
