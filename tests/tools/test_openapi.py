"""OpenAPI documents as plugs: real requests to a real server, within what the document says."""

import base64
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from guildry.errors import PlugError, ToolFailed, ToolRetry
from guildry.tools.base import Call, Effects, Media, Outcome, Text
from guildry.tools.openapi.client import HttpClient, HttpFault
from guildry.tools.openapi.document import Unfit
from guildry.tools.openapi.operations import Sent
from guildry.tools.openapi.servers import Base, base_of
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.options import NOTHING_SAID, PlugOptions
from guildry.tools.plugs.plug import PlugLimits
from guildry.tools.plugs.special import special_of
from guildry.tools.registry import Catalog
from guildry.tools.schema import check_arguments

TOKEN = "tok-" + "5e7" * 8


@dataclass
class Api:
    """A server that keeps what it was sent and answers as it is told."""

    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    answers: list[web.Response] = field(default_factory=list[web.Response])

    async def handle(self, request: web.Request) -> web.Response:
        self.seen.append(
            {
                "method": request.method,
                "target": request.raw_path,
                "headers": dict(request.headers),
                "body": await request.read(),
            }
        )
        return self.answers.pop(0) if self.answers else web.json_response({"ok": True})

    @property
    def last(self) -> dict[str, Any]:
        return self.seen[-1]


@asynccontextmanager
async def serving() -> AsyncGenerator[Api]:
    api = Api()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", api.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        api.url = f"http://{host}:{port}"
        yield api
    finally:
        await runner.cleanup()


def document(api: Api | str, paths: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    url = api if isinstance(api, str) else f"{api.url}/v1"
    return {
        "openapi": "3.1.0",
        "info": {"title": "T", "version": "1"},
        "servers": [{"url": url}],
        "paths": paths,
        **more,
    }


@asynccontextmanager
async def plugged(
    folder: Path, said: Mapping[str, Any] | str, options: PlugOptions = NOTHING_SAID
) -> AsyncGenerator[tuple[PlugBoard, Catalog]]:
    file = folder / "pets.json"
    file.write_text(said if isinstance(said, str) else json.dumps(said))
    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(catalog, limits=PlugLimits(start_s=10)) as board:
            await board.plug(str(file), "pets", options=options)
            yield board, catalog


async def ask(catalog: Catalog, name: str, /, **arguments: Any) -> Outcome:
    tool = catalog.current.get(name)
    check_arguments(tool, arguments)
    return await tool.invoke(arguments, Call(tool, None))


def op(*parameters: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"parameters": list(parameters), "responses": {"200": {"description": "ok"}}, **more}


def parameter(name: str, where: str = "query", **more: Any) -> dict[str, Any]:
    required = {"required": True} if where == "path" else {}
    return {"name": name, "in": where, "schema": {"type": "string"}, **required, **more}


async def test_each_operation_is_a_tool_with_its_effects_and_its_words(tmp_path: Path) -> None:
    paths = {
        "/pets/{id}": {
            "parameters": [parameter("id", "path")],
            "get": op(operationId="getPet", summary="Get a pet", description="By its id."),
            "put": op(),
            "delete": op(operationId="drop.pet"),
        },
        "/pets": {"post": op(operationId="addPet")},
    }
    async with serving() as api, plugged(tmp_path, document(api, paths)) as (_, catalog):
        tools = catalog.current.tools
        got = await ask(catalog, "getPet", id="a b/c?d")

    assert list(tools) == ["getPet", "put_pets_by_id", "drop_pet", "addPet"]
    assert tools["getPet"].description == "Get a pet\nBy its id.\nGET /pets/{id}"
    assert tools["getPet"].effects == Effects(False, True, False, True)
    assert tools["put_pets_by_id"].effects == Effects(True, True, False, True)
    assert tools["addPet"].effects == Effects(True, True, False, False)
    assert tools["drop_pet"].effects == Effects(True, True, True, True, admits=True)
    assert (api.last["method"], api.last["target"]) == ("GET", "/v1/pets/a%20b%2Fc%3Fd")
    assert got == Outcome((Text('{"ok": true}'),))


@pytest.mark.parametrize(
    ("said", "value", "target"),
    [
        (parameter("q"), "a&b=c#d é", "?q=a%26b%3Dc%23d%20%C3%A9"),
        (parameter("q", schema={"type": "array"}), ["a,b", 2, True], "?q=a%2Cb&q=2&q=true"),
        (parameter("q", schema={"type": "array"}, explode=False), ["a,b", 2], "?q=a%2Cb,2"),
        (
            parameter("q", schema={"type": "array"}, style="pipeDelimited", explode=False),
            ["a", "b"],
            "?q=a%7Cb",
        ),
        (
            parameter("q", schema={"type": "array"}, style="spaceDelimited", explode=False),
            ["a", "b"],
            "?q=a%20b",
        ),
        (
            parameter("q", schema={"type": "object"}, style="deepObject"),
            {"a": 1, "b": ["x", "y"]},
            "?q%5Ba%5D=1&q%5Bb%5D=x&q%5Bb%5D=y",
        ),
        (parameter("q", schema={"type": "object"}), {"a": 1, "b": "&"}, "?a=1&b=%26"),
        (parameter("q", schema={"type": "object"}, explode=False), {"a": 1}, "?q=a,1"),
        (parameter("q", allowReserved=True), "a/b:c&d#e", "?q=a/b:c%26d%23e"),
        (
            {"name": "q", "in": "query", "content": {"application/json": {"schema": {}}}},
            {"a": [1]},
            "?q=%7B%22a%22%3A%5B1%5D%7D",
        ),
        (parameter("q", "path"), "x", "/x"),
        (parameter("q", "path", schema={"type": "array"}), ["x", "y/z"], "/x,y%2Fz"),
        (parameter("q", "path", schema={"type": "object"}), {"a": 1, "b": 2}, "/a,1,b,2"),
        (
            parameter("q", "path", schema={"type": "object"}, explode=True),
            {"a": 1, "b": 2},
            "/a=1,b=2",
        ),
        (parameter("q", "path", style="label"), "x", "/.x"),
        (
            parameter("q", "path", schema={"type": "array"}, style="label", explode=True),
            ["x", "y"],
            "/.x.y",
        ),
        (parameter("q", "path", style="matrix"), "x", "/;q=x"),
        (
            parameter("q", "path", schema={"type": "array"}, style="matrix", explode=True),
            ["x", "y"],
            "/;q=x;q=y",
        ),
        (
            parameter("q", "path", schema={"type": "object"}, style="matrix", explode=True),
            {"a": 1, "b": 2},
            "/;a=1;b=2",
        ),
    ],
)
async def test_values_are_written_in_the_style_of_their_parameter(
    tmp_path: Path, said: dict[str, Any], value: Any, target: str
) -> None:
    path = "/x/{q}" if said["in"] == "path" else "/x"
    paths = {path: {"get": op(said, operationId="go")}}
    async with serving() as api, plugged(tmp_path, document(api, paths)) as (_, catalog):
        await ask(catalog, "go", q=value)

    assert api.last["target"] == f"/v1/x{target}"


async def test_headers_and_cookies_are_sent_and_cannot_be_broken_out_of(tmp_path: Path) -> None:
    said = [
        parameter("X-Trace", "header"),
        parameter("X-List", "header", schema={"type": "array"}),
        parameter("sid", "cookie"),
        parameter("Host", "header"),
        parameter("Authorization", "header"),
        parameter("Content-Length", "header"),
    ]
    paths = {"/x": {"get": op(*said, operationId="go")}}
    async with serving() as api, plugged(tmp_path, document(api, paths)) as (_, catalog):
        arguments = {"X-Trace": "a", "X-List": ["b", "c"], "sid": "1;x=2"}
        await ask(catalog, "go", **arguments)
        with pytest.raises(ToolRetry, match="control characters"):
            await ask(catalog, "go", **{"X-Trace": "a\r\nX-Evil: 1"})
        properties = catalog.current.tools["go"].input_schema["properties"]

    headers = api.last["headers"]
    assert list(properties) == ["X-Trace", "X-List", "sid"]
    assert (headers["X-Trace"], headers["X-List"]) == ("a", "b,c")
    assert headers["Cookie"] == "sid=1%3Bx%3D2"
    assert len(api.seen) == 1


@pytest.mark.parametrize(
    "value", ["..", ".", "%2e%2e", "../admin", "a/../../b", "..\\x", "..;a", ""]
)
async def test_a_value_never_leads_to_another_path(tmp_path: Path, value: str) -> None:
    paths = {"/files/{name}": {"get": op(parameter("name", "path"), operationId="read")}}
    async with serving() as api, plugged(tmp_path, document(api, paths)) as (_, catalog):
        with pytest.raises(ToolRetry):
            await ask(catalog, "read", name=value)

    assert api.seen == []


async def test_two_values_together_never_lead_to_another_path(tmp_path: Path) -> None:
    said = [parameter("a", "path"), parameter("b", "path")]
    paths = {"/files/{a}{b}/x": {"get": op(*said, operationId="read")}}
    async with serving() as api, plugged(tmp_path, document(api, paths)) as (_, catalog):
        await ask(catalog, "read", a="x", b=".")
        with pytest.raises(ToolRetry, match=r"`\.`"):
            await ask(catalog, "read", a=".", b=".")

    assert [each["target"] for each in api.seen] == ["/v1/files/x./x"]


async def test_bodies_are_json_forms_text_and_files(tmp_path: Path) -> None:
    def body(media_type: str, schema: Any) -> dict[str, Any]:
        return op(requestBody={"required": True, "content": {media_type: {"schema": schema}}})

    upload = {
        "type": "object",
        "properties": {
            "note": {"type": "string"},
            "more": {"type": "object"},
            "file": {"type": "string", "format": "binary"},
            "all": {"type": "array", "items": {"type": "string", "format": "binary"}},
        },
    }
    paths = {
        "/json": {"post": body("application/json", {"type": "object"})},
        "/form": {"post": body("application/x-www-form-urlencoded", {"type": "object"})},
        "/text": {"post": body("text/plain", {"type": "string"})},
        "/raw": {"post": body("application/octet-stream", {"type": "string", "format": "binary"})},
        "/upload": {"post": body("multipart/form-data", upload)},
    }
    async with serving() as api, plugged(tmp_path, document(api, paths)) as (_, catalog):
        await ask(catalog, "post_json", body={"a": "é"})
        await ask(catalog, "post_form", body={"a": ["1", "2"], "b": "x&y", "c": None})
        await ask(catalog, "post_text", body="hello é")
        await ask(catalog, "post_raw", body={"base64": base64.b64encode(b"\x00\xff").decode()})
        file = {"text": "1,2", "filename": 'a"b\r\n.csv', "media_type": "text/csv"}
        await ask(
            catalog,
            "post_upload",
            body={"note": "n", "more": {"k": 1}, "file": file, "all": [{"text": "z"}]},
        )
        with pytest.raises(ToolRetry, match="either `text` or `base64`"):
            await ask(catalog, "post_upload", body={"file": {}})
        with pytest.raises(ToolRetry, match="no base64"):
            await ask(catalog, "post_raw", body={"base64": "a b c"})
        with pytest.raises(ToolRetry, match="half a character"):
            await ask(catalog, "post_text", body="\ud800")

    kinds = [each["headers"]["Content-Type"] for each in api.seen]
    assert [each["body"] for each in api.seen[:4]] == [
        '{"a": "é"}'.encode(),
        b"a=1&a=2&b=x%26y",
        "hello é".encode(),
        b"\x00\xff",
    ]
    assert kinds[0] == "application/json"
    boundary = kinds[4].partition("boundary=")[2]
    assert api.seen[4]["body"].decode().split(f"--{boundary}") == [
        "",
        '\r\nContent-Disposition: form-data; name="note"\r\n\r\nn\r\n',
        '\r\nContent-Disposition: form-data; name="more"\r\nContent-Type: application/json'
        '\r\n\r\n{"k":1}\r\n',
        '\r\nContent-Disposition: form-data; name="file"; filename="a%22b%0D%0A.csv"'
        "\r\nContent-Type: text/csv\r\n\r\n1,2\r\n",
        '\r\nContent-Disposition: form-data; name="all"; filename="all"'
        "\r\nContent-Type: text/plain\r\n\r\nz\r\n",
        "--\r\n",
    ]


async def test_credentials_are_sent_and_shown_to_nobody(tmp_path: Path) -> None:
    schemes: dict[str, Any] = {
        "key": {"type": "apiKey", "in": "query", "name": "api_key"},
        "cookie-key": {"type": "apiKey", "in": "cookie", "name": "auth"},
        "basic": {"type": "http", "scheme": "basic"},
        "login": {"type": "oauth2", "flows": {}},
    }
    said = [parameter("api_key"), parameter("X-Team", "header"), parameter("q")]
    paths = {
        "/q": {"get": op(*said, operationId="q", security=[{"none": []}, {"key": []}])},
        "/c": {"get": op(operationId="c", security=[{"cookie-key": []}])},
        "/b": {"get": op(operationId="b", security=[{"basic": []}])},
        "/o": {"get": op(operationId="o")},
    }
    options = PlugOptions(
        env={"KEY": TOKEN, "COOKIE_KEY": "ck-123456", "basic": "ann:pass-word", "login": TOKEN},
        headers={"X-Team": "team-secret"},
    )
    made = document("", paths, components={"securitySchemes": schemes}, security=[{"login": []}])
    async with serving() as api:
        made["servers"] = [{"url": api.url}]
        async with plugged(tmp_path, made, options) as (_, catalog):
            tools = catalog.current.tools
            api.answers.append(web.json_response({"you sent": f"{TOKEN} team-secret"}))
            echoed = await ask(catalog, "q", q="x")
            for name in ("c", "b", "o"):
                await ask(catalog, name)
            api.answers.append(web.Response(status=403, text=f"no: {TOKEN}"))
            with pytest.raises(ToolFailed) as refused:
                await ask(catalog, "o")

    assert list(tools["q"].input_schema["properties"]) == ["q"]
    assert api.seen[0]["target"] == f"/q?q=x&api_key={TOKEN}"
    assert api.seen[0]["headers"]["X-Team"] == "team-secret"
    assert echoed == Outcome((Text('{"you sent": "[secret] [secret]"}'),))
    assert api.seen[1]["headers"]["Cookie"] == "auth=ck-123456"
    pair = base64.b64encode(b"ann:pass-word").decode()
    assert api.seen[2]["headers"]["Authorization"] == f"Basic {pair}"
    assert api.seen[3]["headers"]["Authorization"] == f"Bearer {TOKEN}"
    assert "no: [secret]" in str(refused.value)
    assert TOKEN not in repr(tools) + str(refused.value)


async def test_an_argument_cannot_take_the_place_of_a_credential(tmp_path: Path) -> None:
    schemes = {"key": {"type": "apiKey", "in": "query", "name": "api_key"}}
    said = [parameter("filter", schema={"type": "object"}), parameter("page")]
    paths = {"/x": {"get": op(*said, operationId="go", security=[{"key": []}])}}
    options = PlugOptions(env={"key": TOKEN})
    async with serving() as api:
        made = document(api, paths, components={"securitySchemes": schemes})
        async with plugged(tmp_path, made, options) as (_, catalog):
            for name in ("api_key", "page"):
                with pytest.raises(ToolRetry, match=name):
                    await ask(catalog, "go", filter={name: "mine"})

    assert api.seen == []


async def test_json_answers_are_structured_where_the_document_says_their_shape(
    tmp_path: Path,
) -> None:
    pet = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "mother": {"$ref": "#/components/schemas/Pet"},
            "secret": {"type": "string", "writeOnly": True},
        },
    }
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}
    paths = {
        "/pet": {"get": {"operationId": "pet", "responses": {"200": {"content": content}}}},
        "/list": {"get": op(operationId="list")},
    }
    async with serving() as api:
        made = document(api, paths, components={"schemas": {"Pet": pet}})
        async with plugged(tmp_path, made) as (_, catalog):
            schema = catalog.current.tools["pet"].output_schema
            api.answers += [
                web.json_response({"mother": {"name": None}, "more": 1}),
                web.json_response({"name": ["no text"]}),
                web.json_response(
                    [1], headers={"Link": '<https://a/x?page=2>; rel="next", <b>; rel="last"'}
                ),
            ]
            good = await ask(catalog, "pet")
            odd = await ask(catalog, "pet")
            listed = await ask(catalog, "list")

    assert schema is not None
    assert schema["properties"]["mother"] == {"$ref": "#/$defs/Pet"}
    assert list(schema["properties"]) == ["name", "mother"]
    assert good == Outcome(
        (), structured={"mother": {"name": None}, "more": 1}, has_structured=True
    )
    assert odd.is_error
    assert odd.blocks[1:] == (Text('{"name": ["no text"]}'),)
    assert listed == Outcome((Text("[1]"), Text("Next page: https://a/x?page=2")))


async def test_files_empty_answers_and_refusals_are_told_as_what_they_are(tmp_path: Path) -> None:
    paths = {"/x": {"get": op(operationId="get"), "head": op(operationId="head")}}
    async with serving() as api, plugged(tmp_path, document(api, paths)) as (_, catalog):
        api.answers += [
            web.Response(body=b"\x89PNG", content_type="image/png"),
            web.Response(
                body="é".encode("latin-1"), headers={"Content-Type": "text/x; charset=latin-1"}
            ),
            web.Response(status=201, headers={"Location": "/x/5"}),
            web.Response(status=204),
            web.Response(status=404, text="no such pet"),
            web.Response(status=500, text="<b>broken</b>"),
        ]
        image, text, made, nothing = [await ask(catalog, "get") for _ in range(4)]
        with pytest.raises(ToolRetry, match="404 Not Found: no such pet"):
            await ask(catalog, "get")
        with pytest.raises(ToolFailed, match="500 Internal Server Error: <b>broken</b>"):
            await ask(catalog, "get")
        head = await ask(catalog, "head")

    assert image == Outcome((Media(b"\x89PNG", "image/png"),))
    assert text == Outcome((Text("é"),))
    assert isinstance(made.blocks[0], Text)
    assert "location: /x/5" in made.blocks[0].text
    assert nothing == Outcome((Text("204 No Content"),))
    assert isinstance(head.blocks[0], Text)
    assert head.blocks[0].text.startswith("200 OK\ncontent-type: application/json")


async def test_busy_servers_are_asked_again_where_that_does_no_harm(tmp_path: Path) -> None:
    paths = {"/x": {"get": op(operationId="get"), "post": op(operationId="post")}}

    def busy() -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "0"}, text="wait")

    async with serving() as api, plugged(tmp_path, document(api, paths)) as (_, catalog):
        api.answers += [busy(), busy()]
        await ask(catalog, "get")
        api.answers += [busy()]
        with pytest.raises(ToolFailed, match="429"):
            await ask(catalog, "post")
        api.answers += [web.Response(status=503, headers={"Retry-After": "3600"})]
        with pytest.raises(ToolFailed, match="503"):
            await ask(catalog, "get")
        api.answers += [busy() for _ in range(3)]
        with pytest.raises(ToolFailed, match="429"):
            await ask(catalog, "get")

    assert [each["method"] for each in api.seen] == ["GET"] * 3 + ["POST"] + ["GET"] * 4


async def test_redirects_stay_on_the_host_and_take_no_credentials_elsewhere(
    tmp_path: Path,
) -> None:
    paths = {"/x": {"get": op(operationId="get"), "post": op(operationId="post")}}
    options = PlugOptions(headers={"Authorization": f"Bearer {TOKEN}"})
    async with serving() as api, serving() as other:
        async with plugged(tmp_path, document(api, paths), options) as (_, catalog):
            api.answers += [web.Response(status=302, headers={"Location": "/v1/y?a=%2F"})]
            await ask(catalog, "get")
            api.answers += [web.Response(status=303, headers={"Location": "y"})]
            await ask(catalog, "post")
            api.answers += [web.Response(status=302, headers={"Location": f"{other.url}/y"})]
            with pytest.raises(ToolFailed, match="leads to another host"):
                await ask(catalog, "get")
            api.answers += [web.Response(status=301, headers={"Location": "/y"})]
            with pytest.raises(ToolFailed, match="not followed"):
                await ask(catalog, "post")
            api.answers += [web.Response(status=307, headers={"Location": "/x"}) for _ in range(9)]
            with pytest.raises(ToolFailed, match="more than 5"):
                await ask(catalog, "get")

    assert other.seen == []
    assert [(each["method"], each["target"]) for each in api.seen[:4]] == [
        ("GET", "/v1/x"),
        ("GET", "/v1/y?a=%2F"),
        ("POST", "/v1/x"),
        ("GET", "/v1/y"),
    ]


async def test_a_server_that_is_not_there_is_told_by_its_host(tmp_path: Path) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
    paths = {"/x": {"post": op(operationId="post")}}
    made = document(f"http://127.0.0.1:{port}", paths)
    async with plugged(tmp_path, made) as (_, catalog):
        with pytest.raises(ToolFailed, match=f"127.0.0.1:{port} gave no answer"):
            await ask(catalog, "post")


async def test_a_saved_change_is_served_and_a_broken_one_leaves_the_last_good_one(
    tmp_path: Path,
) -> None:
    changed = anyio.Event()
    async with serving() as api:
        before = document(api, {"/a": {"get": op(operationId="a")}})
        async with plugged(tmp_path, before) as (board, catalog):
            catalog.subscribe(lambda _: changed.set())
            after = document(api, {"/b": {"get": op(operationId="b")}})
            (tmp_path / "pets.json").write_text(json.dumps(after))
            await changed.wait()
            names = list(catalog.current.tools)
            (tmp_path / "pets.json").write_text('{"openapi": "3.1.0", ')
            with pytest.raises(PlugError, match="not JSON"):
                await board.reload("pets")
            await ask(catalog, "b")

    assert names == ["b"]


async def test_yaml_is_read_in_the_plain_words_of_its_newest_version(tmp_path: Path) -> None:
    async with serving() as api:
        text = f"""
openapi: 3.0.3
info: {{title: T, version: 2024-01-01}}
servers: [{{url: {api.url}}}]
x-shared: &shared
  "200": {{description: ok}}
paths:
  /x:
    get:
      operationId: go
      parameters:
        - name: country
          in: query
          schema: {{type: string, nullable: true, enum: [no, se], default: no}}
      responses: *shared
"""
        file = tmp_path / "a.yaml"
        file.write_text(text)
        catalog = Catalog()
        with anyio.fail_after(60):
            async with PlugBoard(catalog) as board:
                report = await board.plug(str(file))
                schema = catalog.current.tools["go"].input_schema
                await ask(catalog, "go", country="no")

    assert report.plug == "a"
    assert schema["properties"]["country"] == {
        "type": ["string", "null"],
        "enum": ["no", "se", None],
        "default": "no",
    }
    assert api.last["target"] == "/x?country=no"


@pytest.mark.parametrize(
    ("node", "word"),
    [
        ({"parameters": [{"$ref": "http://127.0.0.1:9/p.json"}]}, "only what is inside"),
        ({"parameters": [{"$ref": "other.yaml#/p"}]}, "only what is inside"),
        ({"parameters": [parameter("q", schema={"$ref": "file:///etc/passwd"})]}, "only what is"),
        ({"parameters": [parameter("q", schema={"$ref": "#/components/schemas/None"})]}, "not in"),
        ({"parameters": [parameter("q", schema={"$ref": "#/components/schemas/Loop"})]}, "end"),
        ({"parameters": [parameter("q", schema={"$ref": "#/components/schemas/All"})]}, "end"),
        ({"parameters": [parameter("q", schema=7)]}, "int"),
        ({"parameters": [{"$ref": "#/components/parameters/Loop"}]}, "circle"),
        ({"parameters": [parameter("q", style="label")]}, "one of form"),
        ({"parameters": [parameter("q\r\nX: 1", "header")]}, "name"),
        ({"parameters": [parameter("gone", "path")]}, "no place"),
        ({"parameters": [parameter("q", "body")]}, "`in`"),
        ({"servers": [{"url": "ftp://127.0.0.1"}]}, "http or https"),
        ({"servers": [{"url": "http://u:p@127.0.0.1"}]}, "password"),
        ({"servers": [{"url": "http://[::1"}]}, "no URL"),
        ({"requestBody": {"content": {"a b\r\n": {"schema": {}}}}}, "is none"),
        ({"requestBody": 7}, "no object"),
    ],
)
async def test_an_operation_that_cannot_be_served_is_left_out_alone(
    tmp_path: Path, node: dict[str, Any], word: str
) -> None:
    loops = {
        "Loop": {"$ref": "#/components/schemas/Loop"},
        "All": {"allOf": [{"anyOf": [{"$ref": "#/components/schemas/All"}]}]},
    }
    again = {"Loop": {"$ref": "#/components/parameters/Loop"}}
    paths = {
        "/bad": {"get": {**op(), "operationId": "bad", **node}},
        "/good": {"get": op(operationId="good")},
    }
    made = document("http://127.0.0.1:9", paths)
    made["components"] = {"schemas": loops, "parameters": again}
    async with plugged(tmp_path, made) as (board, _):
        (status,) = board.listing()

    assert status.tools == ("good",)
    assert [each.tool for each in status.quarantined] == ["bad"]
    assert word in status.quarantined[0].reason


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"openapi": "3.1.0", "paths": []}', "no object"),
        ('{"openapi": "4.0", "paths": {}}', "'4.0'"),
        ('{"swagger": "2.0", "paths": {}}', "Swagger '2.0'"),
        ('{"openapi": "3.0.0", "paths": {}}', "no operations"),
        ('{"openapi": "3.0.0", "paths": {"/x": 7}}', "no object"),
        ('{"openapi": "3.0.0", "x": NaN}', "NaN"),
        ('{"openapi": "3.0.0", "x": ' + "[" * 100_000, "deep"),
        ("openapi: 3.0.0\nx: " + "[" * 3_000, "deep"),
        ("openapi: 3.0.0\nx: &a [*a]\npaths: {}", "alias|anchor|undefined"),
        ("openapi: 3.0.0\n? [a]\n: b\n", "no text"),
        ("openapi: 3.0.0\n\tx: 1", "line 2"),
    ],
)
async def test_a_document_that_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, text: str, word: str
) -> None:
    with pytest.raises(PlugError, match=word):
        async with plugged(tmp_path, text):
            raise AssertionError


async def test_aliases_that_stand_for_millions_of_values_cost_little(tmp_path: Path) -> None:
    head = "openapi: 3.0.0\nservers: [{url: 'http://127.0.0.1:9'}]"
    lines = [head, "paths: {/x: {get: {operationId: bad, parameters: [*p]}}}"]
    bombs = ["a0: &a0 {type: string}"]
    bombs += [f"a{n}: &a{n} {{allOf: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 20)]
    bombs += ["p: &p {name: q, in: query, schema: *a19}"]
    with pytest.raises(PlugError, match="over 4,000 parts"):
        async with plugged(tmp_path, "\n".join([lines[0], *bombs, lines[1]])):
            raise AssertionError


async def test_a_document_from_a_url_is_read_and_held_to_its_servers(tmp_path: Path) -> None:
    catalog = Catalog()
    paths = {"/x": {"get": op(operationId="go")}}
    relative = document("/api", paths)
    async with serving() as api, serving() as other:
        with anyio.fail_after(60):
            async with PlugBoard(catalog) as board:
                options = PlugOptions(headers={"Authorization": f"Bearer {TOKEN}"})
                api.answers += [web.json_response(relative)]
                await board.plug(f"{api.url}/openapi.json", "api", options=options)
                await ask(catalog, "go")
                api.answers += [web.json_response(document(other.url, paths))]
                with pytest.raises(PlugError, match="other servers than before"):
                    await board.reload("api")
                await ask(catalog, "go")

    assert "Authorization" not in api.seen[0]["headers"]
    assert [each["target"] for each in api.seen] == [
        "/openapi.json",
        "/api/x",
        "/openapi.json",
        "/api/x",
    ]
    assert api.seen[1]["headers"]["Authorization"] == f"Bearer {TOKEN}"
    assert other.seen == []


async def test_servers_are_chosen_by_variables_and_by_the_operator(tmp_path: Path) -> None:
    paths = {"/x": {"get": op(operationId="go")}}
    async with serving() as api:
        made = document("", paths)
        made["servers"] = [
            {
                "url": f"{api.url}/{{stage}}",
                "variables": {"stage": {"default": "live", "enum": ["live", "test"]}},
            }
        ]
        for env in ({}, {"stage": "test"}, {"SERVER_URL": f"{api.url}/mine/"}):
            async with plugged(tmp_path, made, PlugOptions(env=env)) as (_, catalog):
                await ask(catalog, "go")
        with pytest.raises(PlugError, match="no value for the server variable"):
            async with plugged(tmp_path, made, PlugOptions(env={"stage": "../evil"})):
                raise AssertionError

    assert [each["target"] for each in api.seen] == ["/live/x", "/test/x", "/mine/x"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x",
        "http://2130706433/x",
        "http://0x7f.1/x",
        "http://[::ffff:10.0.0.1]/x",
        "http://169.254.169.254/latest",
        "http://localhost./x",
        "http://db.internal/x",
        "//192.168.1.1/x",
    ],
)
def test_a_public_document_cannot_name_a_server_of_this_network(url: str) -> None:
    servers = [{"url": url}]
    with pytest.raises(Unfit, match="not on the public network"):
        base_of((servers,), "https://docs.example.com/openapi.json", {})

    said = base_of(
        (servers,), "https://docs.example.com/openapi.json", {"SERVER_URL": "http://10.0.0.1"}
    )
    assert said == Base("http://10.0.0.1")
    assert base_of(([{"url": "/v2"}],), "https://example.com/a/b.json", {}) == Base(
        "https://example.com/v2", fenced=True
    )


async def test_a_fenced_request_does_not_reach_this_network_and_long_answers_are_cut() -> None:
    async with serving() as api:
        port = api.url.rpartition(":")[2]
        client = HttpClient(silence_s=5, max_bytes=100)
        try:
            with pytest.raises(HttpFault, match="not on the public network"):
                sent = Sent("GET", f"http://localhost:{port}/x", {})
                await client.send(sent, repeatable=True, fenced=True)
            api.answers.append(web.Response(text="x" * 101))
            with pytest.raises(HttpFault, match="over 100 bytes"):
                await client.send(Sent("GET", f"{api.url}/x", {}), repeatable=True)
        finally:
            await client.close()

    assert len(api.seen) == 1


def test_sources_that_are_documents_are_known(tmp_path: Path) -> None:
    (tmp_path / "petstore").mkdir()
    file = tmp_path / "petstore" / "openapi.yaml"
    file.write_text("openapi: 3.0.0\n")
    (tmp_path / "data.json").write_text('{"openapi": {"a": 1}}')

    def kind(source: str) -> tuple[str, str] | None:
        found = special_of(source, tmp_path)
        return None if found is None else (found.kind, found.name)

    assert kind("petstore/openapi.yaml") == ("openapi", "petstore")
    assert kind("openapi:petstore/openapi.yaml") == ("openapi", "petstore")
    assert kind("https://petstore3.swagger.io/api/v3/openapi.json") == (
        "openapi",
        "petstore3_swagger",
    )
    assert kind("openapi:https://api.weather.gov/docs") == ("openapi", "weather")
    assert kind("https://host/mcp") is None
    assert kind("data.json") is None
    assert kind("npx thing config.json") is None
    assert kind("later.yaml") == ("openapi", "later")
