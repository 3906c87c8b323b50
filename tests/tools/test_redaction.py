"""Secrets: replaced in whatever form they come, and nothing else is."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from guildry.errors import ToolFailed
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.store import Store
from guildry.tools.base import READS, Call, Embedded, Link, Media, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Grant
from guildry.tools.redaction import (
    HIDDEN,
    REDACTED,
    Redactor,
    is_secret,
    secrets_in,
    shaped,
)
from guildry.tools.registry import Catalog

ANY: dict[str, Any] = {}
KEY = 'k-3f"9Ä/zz 77'
ME = Caller(Grant.root("ann"), "ann")

SHAPES = [
    "Authorization: Bearer abcdef0123456789",
    "authorization: basic dXNlcjpwYXNz",
    "https://user:pass@host/path",
    "sk-proj-abcdefghijklmnop0123",
    "sk_live_abcdefghijklmnop0123",
    "ghp_" + "a1" * 18,
    "github_pat_" + "a1" * 18,
    "glpat-abcdefghij0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "AIza" + "a1" * 17,
    "xoxb-0123456789-abcdef",
    "hf_" + "a1" * 17,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nvg==\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\ncut off",
]


@pytest.mark.parametrize("text", SHAPES)
def test_what_has_the_shape_of_a_secret_is_replaced(text: str) -> None:
    assert REDACTED in shaped(f"before {text} after")
    assert not any(part in shaped(text) for part in text.split()[-1:] if "@" not in part)


@pytest.mark.parametrize(
    "text",
    [
        "the task-force's risk-averse desk-bound high-level work",
        "see https://example.org/a?b=c and mail me@example.org",
        "basic words, a bearer of news, and the public key",
        "npm_config, hf_hub, sk-learn, gh_pages, xoxo, eyJ",
        "sk-learn-is-a-library-without-numbers, pk_of_the_table_of_customers",
        "commit 3f2a9b1c0d4e5f60718293a4b5c6d7e8f9012345",
    ],
)
def test_what_has_not_is_left_as_it_is(text: str) -> None:
    assert shaped(text) is text


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("OPENAI_API_KEY", "letmein", True),
        ("DATABASE_URL", "postgres://u:p@h/db", True),
        ("MCP_CONFIG", "x8f0-22", True),
        ("LOG_LEVEL", "warning", False),
        ("MODE", "readonly", False),
        ("WORKERS", "100000", False),
        ("MAX_TOKENS", "100000", False),
        ("BASE_URL", "https://example.org/v1", False),
        ("CACHE_DIR", "/var/cache/some thing", False),
        ("PIN_CODE_KEY", "123456", True),
        ("TOKEN", "abc", False),
    ],
)
def test_a_variable_is_secret_unless_it_is_known_to_be_harmless(
    name: str, value: str, secret: bool
) -> None:
    assert is_secret(name, value) is secret


def test_secrets_in_command_lines_and_urls_are_found() -> None:
    assert secrets_in("npx server --api-key s3cr3t-1 --port 100000") == ["s3cr3t-1"]
    assert secrets_in("srv --auth-token=s3cr3t-2 'a b") == ["s3cr3t-2"]
    assert secrets_in("https://h/mcp?x=1&api_key=s3cr3t-3&y=2") == ["s3cr3t-3"]
    assert secrets_in("https://ann:s3cr3t-4@h/mcp") == ["s3cr3t-4"]
    assert secrets_in("uvx mcp-server-time --local-timezone Europe/Oslo") == []


@given(
    secret=st.text(
        st.characters(codec="utf-8", exclude_characters=REDACTED),
        min_size=6,
        max_size=40,
    ),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
def test_a_known_value_is_in_no_part_of_an_answer(secret: str, before: str, after: str) -> None:
    assume(secret.strip() == secret)
    hidden = Redactor()
    hidden.hide([secret])
    text = before + secret + after
    data = base64.b64encode(b"x") + secret.encode() + b"y"

    clean = hidden.outcome(
        Outcome(
            (
                Text(text),
                Media(data, "image/png"),
                Embedded("x:1", text=text),
                Link(f"https://h/?q={quote(secret, safe='')}", "n", description=text),
            ),
            structured={"a": [text, {text: 1}], "b": 2},
            has_structured=True,
        )
    )

    told, media, embedded, link = clean.blocks
    assert isinstance(told, Text)
    assert isinstance(media, Media)
    assert isinstance(embedded, Embedded)
    assert isinstance(link, Link)
    first, keys = clean.structured["a"]
    texts = [told.text, embedded.text, link.description, first, *keys]
    assert not any(secret in (each or "") for each in texts)
    assert secret.encode() not in media.data
    assert quote(secret, safe="") not in link.uri


def test_an_answer_without_secrets_is_the_same_object() -> None:
    hidden = Redactor()
    outcome = Outcome((Text("fine"), Media(b"x", "image/png")), {"a": 1}, has_structured=True)
    assert hidden.outcome(outcome) is outcome

    hidden.hide([KEY, "short"])

    assert hidden.outcome(outcome) is outcome
    assert hidden.clean("short") == "short"
    link = Link("x:1", "n")
    assert hidden.block(link) is link


@given(st.text(st.sampled_from("sk-_:/@ .eyJBEGINgh0aearer \n'"), max_size=300))
def test_shapes_are_found_in_any_text_and_nothing_is_found_twice(text: str) -> None:
    once = shaped(text)

    assert shaped(once).count(REDACTED) == once.count(REDACTED)


@pytest.mark.parametrize("part", ["sk-", "eyJ-", "://a", "bearer  ", "ghp_"])
def test_a_text_that_is_nearly_full_of_secrets_is_left_as_it_is(part: str) -> None:
    text = part * 50_000

    assert shaped(text) == text


def test_what_is_nested_too_deep_to_be_looked_at_is_not_shown() -> None:
    hidden = Redactor()
    hidden.hide([KEY])
    deep: Any = KEY
    for _ in range(5_000):
        deep = [deep]

    assert KEY not in repr(hidden.value({"a": KEY, "b": deep}))
    assert hidden.value({"a": [1, KEY]}) == {"a": [1, REDACTED]}


def test_a_secret_is_not_cut_in_two_and_half_of_it_kept() -> None:
    hidden = Redactor()
    hidden.hide(["0123456789"])

    assert hidden.cut("ab0123456789cd", 5) == f"ab{REDACTED}"[:5]
    assert hidden.cut("ab", 5) == "ab"


async def test_a_tool_that_tells_its_own_key_tells_neither_model_nor_journal(
    tmp_path: Path,
) -> None:
    key = "own-key-of-a-server-8841"
    HIDDEN.hide_named({"SERVER_KEY": key})

    async def leak(arguments: dict[str, Any], _: Call) -> Outcome:
        if arguments["way"] == "error":
            raise ToolFailed(f"401 for {key}, sent Bearer abcdefgh12345678")
        if arguments["way"] == "structured":
            return Outcome(structured={"env": {"KEY": key}}, has_structured=True)
        return Outcome((Text(f"{key} " * arguments.get("times", 1)),))

    async with Store.open(tmp_path / "guildry.db") as store:
        catalog, journal = Catalog(), Journal(store)
        objects = ObjectStore(store, tmp_path / "objects")
        dispatch = Dispatch(catalog, objects, journal, EffectLedger(store))
        tool = Tool(
            name="leak",
            plug="up",
            description="",
            input_schema={
                "type": "object",
                "properties": dict.fromkeys(("way", "times", "note"), ANY),
            },
            invoke=leak,
            effects=READS,
            output_schema={"type": "object"},
        )
        catalog.replace("up", [tool])

        with anyio.fail_after(20):
            error = await dispatch.call(ME, "leak", {"way": "error"})
            whole = await dispatch.call(ME, "leak", {"way": "structured"})
            text = await dispatch.call(
                ME, "leak", {"way": "text", "note": f"my {key} and AKIAIOSFODNN7EXAMPLE"}
            )
            stored = await dispatch.call(ME, "leak", {"way": "text", "times": 1_000})
            kept = await objects.read(stored.references[0])
            entries = await journal.read("ann")

    assert error.text == f"401 for {REDACTED}, sent Bearer {REDACTED}"
    assert whole.structured == {"env": {"KEY": REDACTED}}
    assert text.text == f"{REDACTED} "
    assert key.encode() not in kept
    told = json.dumps([entry.data for entry in entries])
    assert len(entries) == 4
    assert key not in told
    assert "AKIA" not in told
