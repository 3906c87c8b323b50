"""OpenAPI documents as plugs: each operation is a tool, read anew when the file is saved."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from guildry.errors import PlugError, ToolFailed
from guildry.tools.base import Call, Invoke, Json, Outcome, Tool
from guildry.tools.openapi.answers import Reader
from guildry.tools.openapi.client import Answer, HttpClient, HttpFault
from guildry.tools.openapi.document import MAX_BYTES, DocumentError, read_document
from guildry.tools.openapi.operations import Operation, Sent, read_operations
from guildry.tools.openapi.security import Credentials
from guildry.tools.openapi.servers import origin_of
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.plug import Loaded, PlugLimits, Quarantined, Watched

__all__ = ["OpenApiPlug"]

_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_READ_S: Final = 20.0


class OpenApiPlug:
    """An HTTP API, as its OpenAPI document says.

    Requests go to the servers that the document named when it was plugged; credentials go to those
    alone. What an operation does to the world is known by its method.

    Args:
        source: as it was written.
        name: on the board.
        where: the document: a file, or a URL.
        options: credentials, the server's URL and limits.
        limits: how long each step may take.
    """

    def __init__(
        self, source: str, name: str, where: Path | str, options: PlugOptions, limits: PlugLimits
    ) -> None:
        self.kind = "openapi"
        self.source = source
        self.name = name
        self.watched = (Watched(where, ""),) if isinstance(where, Path) else ()
        self.fault: str | None = None  # whether a server is there is known by each call alone
        self._where = where
        self._options = options
        self._limits = limits
        self._origins: frozenset[str] | None = None
        self._client = self._new_client()

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Read the document.

        Raises:
            PlugError: it cannot be read, or offers nothing that can be served.
        """
        self._client, self._origins = self._new_client(), None
        loaded = await self.reload()
        if not loaded.tools:
            faults = [f"`{each.tool}`: {each.reason}" for each in loaded.quarantined[:3]]
            raise self._error("; ".join(faults) or "it has no operations", "Mend it there")
        return loaded

    async def reload(self) -> Loaded:
        """Read the document anew.

        Raises:
            PlugError: it cannot be read, or names servers that it did not name before.
        """
        data = await self._data()
        try:
            with anyio.fail_after(max(_READ_S, self._limits.start_s)):
                work = partial(self._read, data)
                operations, credentials, left_out = await to_thread.run_sync(
                    work, abandon_on_cancel=True
                )
        except DocumentError as error:
            raise self._error(error.reason, error.cure) from error
        except TimeoutError:
            raise self._error("reading it takes too long", "Plug a smaller part of it") from None
        self._hold_to_servers(operations)
        tools = tuple(self._tool(each, credentials) for each in operations)
        return Loaded(tools, tuple(left_out))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _new_client(self) -> HttpClient:
        options = self._options
        return HttpClient(
            silence_s=options.call_timeout_s or self._limits.call_s,
            max_bytes=_MAX_ANSWER_BYTES,
            at_once=options.calls_at_once,
        )

    def _error(self, reason: str, cure: str) -> PlugError:
        return PlugError(self.source, reason, cure)

    async def _data(self) -> bytes:
        if isinstance(self._where, Path):
            try:
                return await to_thread.run_sync(_read_file, self._where)
            except OSError as error:
                reason = error.strerror or str(error)
                raise self._error(f"it cannot be read ({reason})", "Check the path") from error
        client = HttpClient(silence_s=self._limits.start_s, max_bytes=MAX_BYTES)
        try:
            with anyio.fail_after(self._limits.start_s):
                answer = await _fetched(client, self._where, self._options.headers)
        except (HttpFault, TimeoutError) as error:
            told = str(error) or f"there is no answer within {self._limits.start_s:g} s"
            raise self._error(f"it cannot be read: {told}", "Check the URL") from error
        finally:
            with anyio.CancelScope(shield=True):
                await client.close()
        if answer.status != 200:
            raise self._error(f"it is answered {answer.status}", "Check the URL and `headers`")
        return answer.body

    def _read(self, data: bytes) -> tuple[list[Operation], Credentials, list[Quarantined]]:
        document = read_document(data)
        credentials = Credentials(document, self._options)
        url = self._where if isinstance(self._where, str) else None
        operations, left_out = read_operations(document, credentials, url, self._options.env)
        return operations, credentials, left_out

    def _hold_to_servers(self, operations: list[Operation]) -> None:
        """Refuse servers that were not there at first: credentials were given for those."""
        origins = frozenset(origin_of(each.base.url) for each in operations)
        if self._origins is None or isinstance(self._where, Path):
            self._origins = origins
        if others := origins - self._origins:
            names = ", ".join(sorted(others))[:300]
            raise self._error(f"it names other servers than before: {names}", "Plug it anew")

    def _tool(self, operation: Operation, credentials: Credentials) -> Tool:
        return Tool(
            name=operation.name,
            plug=self.name,
            source_name=operation.name,
            title=operation.title,
            description=operation.description,
            input_schema=operation.input_schema,
            output_schema=operation.output_schema,
            effects=operation.effects,
            invoke=self._invoker(operation, credentials),
            timeout_s=self._options.call_timeout_s,
        )

    def _invoker(self, operation: Operation, credentials: Credentials) -> Invoke:
        reader = Reader(operation, credentials)

        async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
            sent = operation.request(arguments)
            try:
                answer = await self._client.send(
                    sent, repeatable=operation.effects.repeatable, fenced=operation.base.fenced
                )
            except HttpFault as error:
                host = urlsplit(operation.base.url).netloc
                told = credentials.without(str(error))
                raise ToolFailed(f"`{call.tool.name}`: {host} gave no answer: {told}") from None
            return await reader.outcome(call.tool.name, answer)

        return invoke


async def _fetched(client: HttpClient, url: str, headers: Mapping[str, str]) -> Answer:
    """Return a document. Credentials, which are the API's, are shown only where it takes some."""
    accept = {"Accept": "application/json, application/yaml, */*;q=0.5"}
    answer = await client.send(Sent("GET", url, accept), repeatable=True)
    if answer.status in (401, 403) and headers:
        answer = await client.send(Sent("GET", url, {**accept, **headers}), repeatable=True)
    return answer


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
