"""`guildry serve` over HTTP as a process: signals, TLS, addresses, and the extra `fast`."""

import datetime
import ipaddress
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import httpx2
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from endpoint import LEGACY, MODERN, Post, bearer, legacy_call, modern_call, token_of, write_tokens
from mcp import Client

PLUG = '''
import anyio

from guildry.tools.python import reads


@reads
async def slow(began: str, ends: str) -> str:
    """Wait for a file."""
    await anyio.Path(began).touch()
    while not await anyio.Path(ends).exists():
        await anyio.sleep(0.01)
    return "ended"
'''
NEEDS_FAST = pytest.mark.skipif(
    not (find_spec("uvloop") and find_spec("httptools")), reason="needs `guildry[fast]`"
)
FAST = pytest.mark.parametrize("fast", [False, pytest.param(True, marks=NEEDS_FAST)])


class Server:
    """A process of `guildry serve`, and what it logs."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stderr is not None
        self.process = process
        self.port = 0
        self._log = BufferedByteReceiveStream(process.stderr)

    async def logged(self, *events: str) -> dict[str, dict[str, Any]]:
        """Return the next line of the log about each event, by the events."""
        found: dict[str, dict[str, Any]] = {}
        while len(found) < len(events):
            line = json.loads(await self._log.receive_until(b"\n", 100_000))
            if line["event"] in events:
                found[line["event"]] = line
        return found


@asynccontextmanager
async def running(tmp_path: Path, *args: str) -> AsyncGenerator[Server]:
    plug = tmp_path / "mine.py"
    plug.write_text(PLUG)
    command = [sys.executable, "-m", "guildry.server", "serve", "--home", str(tmp_path / "home"),
               "--port", "0", "--plug", str(plug), *args]  # fmt: skip
    with anyio.fail_after(90):
        async with await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=tmp_path
        ) as process:
            server = Server(process)
            try:
                begun = await server.logged("http_started", "plugs_opened")
                server.port = begun["http_started"]["port"]
                yield server
            finally:
                if process.returncode is None:
                    process.kill()


async def appears(path: Path) -> None:
    while not await anyio.Path(path).exists():
        await anyio.lowlevel.checkpoint()


@FAST
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_the_official_client_is_served_with_and_without_the_extra(
    tmp_path: Path, fast: bool, era: Any
) -> None:
    async with running(tmp_path, "--set", f"fast={str(fast).lower()}") as server:
        async with Client(f"http://127.0.0.1:{server.port}/mcp", mode=era) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
        maps = Path(f"/proc/{server.process.pid}/maps")
        if await anyio.Path(maps).exists():
            loaded = await anyio.Path(maps).read_text()
            assert ("uvloop" in loaded, "httptools" in loaded) == (fast, fast)
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0

    assert "slow" in names


@FAST
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_at_a_signal_no_call_is_taken_and_those_in_flight_end(
    tmp_path: Path, fast: bool, era: str
) -> None:
    began, ends = tmp_path / "began", tmp_path / "ends"
    arguments = {"began": str(began), "ends": str(ends)}
    answers: list[httpx2.Response] = []
    others: list[httpx2.Response] = []
    setting = ("--set", f"fast={str(fast).lower()}", "--set", "drain_s=60")
    async with running(tmp_path, *setting) as server, httpx2.AsyncClient(timeout=60) as http:
        root = f"http://127.0.0.1:{server.port}"
        post = Post(f"{root}/mcp", http)
        await post.open()
        sent: Any = (legacy_call("slow", arguments, id=5), None)
        if era == "modern":
            sent, post.session = modern_call("slow", arguments), {}

        async def call() -> None:
            answers.append(await post.send(*sent))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await appears(began)
            server.process.send_signal(signal.SIGTERM)
            await server.logged("http_stopping")
            version = {"MCP-Protocol-Version": LEGACY if era == "legacy" else MODERN}
            told = {"progressToken": 1, "progress": 1}
            notice = {"method": "notifications/progress", "params": told}
            others += [
                await post.send(*sent),
                await http.get(f"{root}/health"),
                await http.get(f"{root}/ready"),
                await post.send(notice, version),
                await http.get(f"{root}/mcp", headers={"Accept": "text/event-stream"}),
            ]
            ends.touch()
        assert await server.process.wait() == 0

    assert answers[0].json()["result"]["content"][0]["text"] == "ended"
    late, alive, ready, noticed, stream = others
    assert (late.status_code, late.headers["retry-after"]) == (503, "1")
    assert late.json()["error"]["message"] == "The server is stopping"
    assert (alive.status_code, alive.json()["status"]) == (200, "draining")
    assert (ready.status_code, ready.json()["reasons"]) == (503, ["the server is stopping"])
    assert (noticed.status_code, stream.status_code) == (202, 503)


async def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    began = tmp_path / "began"
    arguments = {"began": str(began), "ends": str(tmp_path / "never")}
    async with running(tmp_path, "--set", "drain_s=600") as server:
        async with httpx2.AsyncClient(timeout=60) as http, anyio.create_task_group() as tasks:
            post = Post(f"http://127.0.0.1:{server.port}/mcp", http)

            async def call() -> None:
                try:
                    await post.send(*modern_call("slow", arguments))
                except httpx2.HTTPError:
                    pass

            tasks.start_soon(call)
            await appears(began)
            server.process.send_signal(signal.SIGTERM)
            await server.logged("http_stopping")
            server.process.send_signal(signal.SIGINT)
            assert await server.process.wait() == 0


async def test_open_streams_are_closed_in_the_way_that_tells_their_clients(tmp_path: Path) -> None:
    async with running(tmp_path) as server, httpx2.AsyncClient(timeout=60) as http:
        url = f"http://127.0.0.1:{server.port}/mcp"
        post = Post(url, http)
        await post.open()
        params = {
            "_meta": modern_call("x", {})[0]["params"]["_meta"],
            "notifications": {"toolsListChanged": True},
        }
        listen = {"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": params}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen",
                   "Accept": "application/json, text/event-stream"}  # fmt: skip
        heard = ""
        async with (
            http.stream("POST", url, json=listen, headers=headers) as modern,
            http.stream(
                "GET", url, headers={**post.session, "Accept": "text/event-stream"}
            ) as legacy,
        ):
            server.process.send_signal(signal.SIGTERM)
            async for text in modern.aiter_text():
                heard += text
            async for _ in legacy.aiter_bytes():
                pass
        assert await server.process.wait() == 0

    last = heard.strip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["id"] == 7


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for this machine that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "cert.pem", folder / "key.pem"
    pem = serialization.Encoding.PEM
    certificate.write_bytes(made.public_bytes(pem))
    plain = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return certificate, private


@FAST
async def test_beyond_this_machine_https_is_served_to_those_with_a_token(
    tmp_path: Path, fast: bool
) -> None:
    tokens = write_tokens(tmp_path / "tokens.toml", ada="tools")
    certificate, key = write_certificate(tmp_path)
    settings = (
        f"http.tokens={tokens}",
        f"http.tls_certificate={certificate}",
        f"http.tls_key={key}",
        "http.public_url=https://tools.example/mcp",
        f"fast={str(fast).lower()}",
    )
    flags = [part for setting in settings for part in ("--set", setting)]
    async with running(tmp_path, "--host", "0.0.0.0", *flags) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        async with httpx2.AsyncClient(verify=context) as http:
            url = f"https://127.0.0.1:{server.port}/mcp"
            listed = await Post(url, http, **bearer(token_of("ada"))).send(
                {"id": 1, "method": "tools/list", "params": modern_call("x", {})[0]["params"]},
                {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"},
            )
            nobody = await http.post(url)
            write_tokens(tokens, bob="tools")
            await server.logged("tokens_read")
            revoked = await http.post(url, headers=bearer(token_of("ada")))
            with pytest.raises(httpx2.HTTPError):
                await http.get(f"http://127.0.0.1:{server.port}/health")

    assert listed.status_code == 200
    assert "slow" in listed.text
    assert (nobody.status_code, revoked.status_code) == (401, 401)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--host", "0.0.0.0"], "guildry token new"),
        (["--set", "http.tokens=none.toml"], "guildry token new"),
        (["--set", "http.tls_certificate=a", "--set", "http.tls_key=b"], "PEM"),
        (["--host", "no such host.invalid", "--set", "http.behind_proxy=true",
          "--set", "http.tokens=t.toml"], "no address is known"),
    ],
)  # fmt: skip
async def test_what_cannot_be_served_is_told_with_the_cure(
    tmp_path: Path, args: list[str], told: str
) -> None:
    write_tokens(tmp_path / "t.toml", ada="tools")
    command = [sys.executable, "-m", "guildry.server", "serve", "--port", "0",
               "--home", str(tmp_path / "home"), *args]  # fmt: skip
    with anyio.fail_after(60):
        ended = await anyio.run_process(command, check=False, cwd=tmp_path)

    assert ended.returncode == 2
    assert told in ended.stderr.decode()
    assert "Traceback" not in ended.stderr.decode()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_ipv6_is_served(tmp_path: Path) -> None:
    async with running(tmp_path, "--host", "::1") as server, httpx2.AsyncClient() as http:
        health = await http.get(f"http://[::1]:{server.port}/health")

    assert health.status_code == 200


async def test_a_token_that_was_made_by_the_command_comes_in_until_it_is_revoked(
    tmp_path: Path,
) -> None:
    async def token(*args: str) -> str:
        command = [sys.executable, "-m", "guildry.server", "token", *args]
        at_home = ["--home", str(tmp_path / "home")]
        return (await anyio.run_process([*command, *at_home], cwd=tmp_path)).stdout.decode()

    made = (await token("new", "ada", "--scopes", "tools", "--days", "3")).strip()
    listed = await token("list")
    path = tmp_path / "home" / "tokens.toml"
    async with running(tmp_path, "--set", f"http.tokens={path}") as server:
        async with httpx2.AsyncClient() as http:
            url = f"http://127.0.0.1:{server.port}/mcp"
            taken = await Post(url, http, **bearer(made)).open()
            await token("revoke", "ada")
            await server.logged("tokens_read")
            revoked = await Post(url, http, **bearer(made)).open()

    assert made.startswith("guildry_")
    assert made not in listed
    assert "ada" in listed
    assert (taken.status_code, revoked.status_code) == (200, 401)
    assert json.loads(await token("list", "--json"))["tokens"] == []
