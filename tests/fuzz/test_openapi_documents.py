"""Whatever an OpenAPI document says and a call passes, requests stay where they belong."""

import json
import random
from typing import Any
from urllib.parse import unquote, urlsplit

from hypothesis import given, settings
from hypothesis import strategies as st
from mutate import broken_bytes, broken_message

from guildry.errors import ToolRetry
from guildry.tools.openapi.document import DocumentError, read_document
from guildry.tools.openapi.operations import Operation, read_operations
from guildry.tools.openapi.security import Credentials
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.schema import schema_fault

SECRET = "s3cret-" + "9" * 20
OPTIONS = PlugOptions(headers={"X-Team": SECRET}, env={"key": SECRET})
BASE = "http://api.test:8080/v1"


def parameter(name: str, where: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": {}, **more}


GOOD: dict[str, Any] = {
    "openapi": "3.1.0",
    "servers": [{"url": BASE}],
    "security": [{"key": []}],
    "components": {
        "securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "api_key"}},
        "schemas": {
            "Pet": {
                "type": "object",
                "properties": {
                    "mother": {"$ref": "#/components/schemas/Pet"},
                    "n": {"type": "integer"},
                },
                "required": ["n"],
            }
        },
        "parameters": {"page": parameter("page", "query")},
    },
    "paths": {
        "/pets/{id}/{kind}": {
            "parameters": [
                parameter("id", "path"),
                parameter("kind", "path", style="matrix", explode=True),
            ],
            "get": {
                "operationId": "get",
                "parameters": [
                    {"$ref": "#/components/parameters/page"},
                    parameter("deep", "query", style="deepObject"),
                    parameter("open", "query", allowReserved=True),
                    parameter("X-A", "header"),
                    parameter("c", "cookie"),
                ],
                "responses": {
                    "200": {
                        "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}
                        }
                    }
                },
            },
            "post": {
                "operationId": "post",
                "requestBody": {
                    "content": {
                        "multipart/form-data": {
                            "schema": {
                                "type": "object",
                                "properties": {"f": {"type": "string", "format": "binary"}},
                            }
                        }
                    }
                },
            },
        }
    },
}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
TRICKY = st.sampled_from(
    [
        "..",
        "../x",
        "%2e%2e",
        "/",
        "//evil.test",
        "?a=b",
        "#f",
        "a\r\nb",
        "\\..\\",
        "@evil.test",
        ";",
    ]
)


def operations(data: bytes) -> list[Operation]:
    """Return what can be served of a document, or nothing where it cannot be read."""
    try:
        document = read_document(data)
    except DocumentError:
        return []
    found, _ = read_operations(document, Credentials(document, OPTIONS), None, OPTIONS.env)
    return found


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_broken_documents_are_refused_or_served_in_part(seed: int) -> None:
    chance = random.Random(seed)
    try:
        data = json.dumps(broken_message(chance, GOOD), default=str).encode()
    except RecursionError:  # too deep to be written here
        return
    for text in (data, broken_bytes(chance, data)):
        for operation in operations(text):
            assert schema_fault(operation.input_schema) is None
            assert operation.output_schema is None or schema_fault(operation.output_schema) is None
            assert SECRET not in repr((operation.input_schema, operation.description))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_bytes_of_any_kind_are_no_document(data: bytes) -> None:
    assert operations(data) == []


@settings(max_examples=600, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["page", "deep", "open", "X-A", "c"]), VALUES | TRICKY),
    VALUES | TRICKY,
    VALUES | TRICKY,
)
def test_a_request_goes_to_the_path_of_its_operation_whatever_is_passed(
    others: dict[str, Any], id: Any, kind: Any
) -> None:
    (get, _) = operations(json.dumps(GOOD).encode())
    arguments = {"id": id, "kind": kind, **others}
    if id is None or kind is None:
        return
    try:
        sent = get.request(arguments)
    except ToolRetry:
        return
    parts = urlsplit(sent.url)
    segments = parts.path.split("/")
    names = [unquote(pair.partition("=")[0]) for pair in parts.query.split("&")]

    assert (parts.scheme, parts.netloc, parts.fragment) == ("http", "api.test:8080", "")
    assert segments[:3] == ["", "v1", "pets"]
    assert len(segments) == 5
    assert not {".", ".."} & {unquote(each) for each in segments}
    assert names.count("api_key") == 1
    assert sent.url.isascii()
    assert not any(ord(each) < 32 for value in sent.headers.values() for each in value)
    assert sent.headers["X-Team"] == SECRET
