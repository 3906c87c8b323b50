"""The operations of an OpenAPI document: what each takes, does and answers. Sends nothing.

An operation that cannot be served is left out alone, with the reason.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from guildry.errors import ToolRetry
from guildry.tools.base import Effects, Json
from guildry.tools.openapi.bodies import Body, read_body
from guildry.tools.openapi.document import Document, Unfit
from guildry.tools.openapi.parameters import Parameter, read_parameter
from guildry.tools.openapi.schemas import Shaper, brief
from guildry.tools.openapi.security import Applied, Credentials
from guildry.tools.openapi.servers import Base, base_of
from guildry.tools.plugs.plug import Quarantined
from guildry.tools.schema import as_list, as_object

__all__ = ["Operation", "Sent", "read_operations"]

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch")
_EFFECTS: Final[Mapping[str, Effects]] = {
    "PUT": Effects(writes=True, egress=True, destructive=False, idempotent=True),
    "POST": Effects(writes=True, egress=True, destructive=False),
    "PATCH": Effects(writes=True, egress=True, destructive=False),
    "DELETE": Effects(writes=True, egress=True, destructive=True, idempotent=True, admits=True),
}
_READS: Final = Effects(writes=False, egress=True, destructive=False, idempotent=True)
_NOT_OURS: Final = frozenset(  # of headers: what the connection or the body decides
    {"accept", "authorization", "connection", "content-length", "content-type", "cookie", "expect"}
    | {"host", "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
)
_MAX_OPERATIONS: Final = 3_000
_SLOT: Final = re.compile(r"\{([^{}]{1,200})\}")


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it is sent. `url` is encoded."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation.

    Args:
        name: its `operationId`, or made of its method and path.
        method: in capitals.
        path: as the document has it.
        base: where it is served.
        description: what a model reads.
        title: its summary, if it has one.
        parameters: by the names of their arguments.
        body: what it takes besides, as the argument `body`.
        input_schema: of its arguments.
        output_schema: of its answer, where that is a JSON object.
        applied: the credentials that go with it.
        refused: what to say where the API wants others.
    """

    name: str
    method: str
    path: str
    base: Base
    description: str
    title: str | None
    parameters: Mapping[str, Parameter]
    body: Body | None
    input_schema: Mapping[str, Json]
    output_schema: Mapping[str, Json] | None
    applied: Applied
    refused: str

    @property
    def effects(self) -> Effects:
        """What it does to the world, by its method."""
        return _EFFECTS.get(self.method, _READS)

    def request(self, arguments: Mapping[str, Json]) -> Sent:
        """Return the request of a call. It goes to the operation's own path, whatever is said.

        Raises:
            ToolRetry: an argument cannot be written where it belongs.
        """
        try:
            return self._request(arguments)
        except UnicodeEncodeError as error:
            raise ToolRetry(f"an argument holds half a character ({error}): leave it out") from None

    def _request(self, arguments: Mapping[str, Json]) -> Sent:
        slots: dict[str, str] = {}
        query: list[tuple[str, str]] = []
        headers: dict[str, str] = {"Accept": "application/json, */*;q=0.5"}
        cookies = list(self.applied.cookies)
        for argument, parameter in self.parameters.items():
            value = arguments.get(argument)
            if value is None:
                continue
            match parameter.where:
                case "path":
                    slots[parameter.name] = parameter.in_path(value)
                case "query":
                    query += self._open_pairs(argument, parameter.in_query(value))
                case "header":
                    headers[parameter.name] = parameter.in_header(value)
                case "cookie":
                    cookies.append(parameter.in_cookie(value))
        body: bytes | None = None
        if self.body is not None and arguments.get("body") is not None:
            body, headers["Content-Type"] = self.body.encode(arguments["body"])
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        fixed = {name.lower() for name in self.applied.headers}
        kept = {name: each for name, each in headers.items() if name.lower() not in fixed}
        pairs = "&".join(f"{key}={value}" for key, value in (*query, *self.applied.query))
        url = f"{self.base.url}{self._filled(slots)}{'?' if pairs else ''}{pairs}"
        return Sent(self.method, url, {**kept, **self.applied.headers}, body)

    def _open_pairs(self, argument: str, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return pairs of an argument, none of which is another parameter or a credential."""
        taken = {each.name for each in self.parameters.values() if each.where == "query"}
        taken |= {unquote(key) for key, _ in self.applied.query}
        own = self.parameters[argument].name
        for key, _ in pairs:
            if unquote(key) != own and unquote(key) in taken:
                raise ToolRetry(f"`{argument}` has the member {unquote(key)!r:.80}: leave it out")
        return pairs

    def _filled(self, slots: Mapping[str, str]) -> str:
        path = _SLOT.sub(lambda match: slots[match[1]], self.path)
        for segment in path.split("/"):
            if _is_dots(segment):
                raise ToolRetry(
                    f"`{segment[:40]}` would lead out of the path {self.path}: give a value without"
                    " `.` and `..` as its parts"
                )
        return path


def read_operations(
    document: Document,
    credentials: Credentials,
    document_url: str | None,
    env: Mapping[str, str],
) -> tuple[list[Operation], list[Quarantined]]:
    """Return what a document offers, and what of it cannot be served.

    Args:
        document: what was read.
        credentials: what goes with requests.
        document_url: where it came from; None for a file.
        env: values of server variables.
    """
    reader = _Reader(document, credentials, document_url, env)
    found: list[Operation] = []
    left_out: list[Quarantined] = []
    for n, (path, method, item) in enumerate(_items(document, left_out)):
        if n >= _MAX_OPERATIONS:
            left_out.append(Quarantined(path[:200], f"there are over {_MAX_OPERATIONS:,}"))
            break
        try:
            found.append(reader.operation(path, method, item))
        except (Unfit, RecursionError) as error:
            reason = str(error) if isinstance(error, Unfit) else "it is nested too deep: flatten it"
            left_out.append(Quarantined(_named(path, method, item), reason))
    return found, left_out


def _items(
    document: Document, left_out: list[Quarantined]
) -> Iterator[tuple[str, str, Mapping[str, Json]]]:
    """Yield path, method and path item of each operation."""
    for path, node in (as_object(document.root.get("paths")) or {}).items():
        if path.startswith("x-"):
            continue
        try:
            item = document.mapping(node, "its path item")
        except Unfit as error:
            left_out.append(Quarantined(path[:200], str(error)))
            continue
        for method in _METHODS:
            if method in item:
                yield path, method, item


class _Reader:
    """Read operations of one document."""

    def __init__(
        self,
        document: Document,
        credentials: Credentials,
        document_url: str | None,
        env: Mapping[str, str],
    ) -> None:
        self._document = document
        self._credentials = credentials
        self._document_url = document_url
        self._env = env

    def operation(self, path: str, method: str, item: Mapping[str, Json]) -> Operation:
        """Read one.

        Raises:
            Unfit: it cannot be served.
        """
        said = self._document.mapping(item[method], "it")
        root = self._document.root
        levels = (said.get("servers"), item.get("servers"), root.get("servers"))
        security = said.get("security", root.get("security"))
        applied = self._credentials.applied(security)
        parameters = self._parameters(item, said, applied)
        _check_path(path, parameters)
        body = read_body(self._document, said.get("requestBody"))
        shaper = Shaper(self._document)
        summary = brief(said.get("summary"), 200)
        return Operation(
            name=_named(path, method, item),
            method=method.upper(),
            path=path,
            base=base_of(levels, self._document_url, self._env),
            description=_described(said, summary, f"{method.upper()} {path}"),
            title=summary or None,
            parameters=parameters,
            body=body,
            input_schema=_input_schema(shaper, parameters, body),
            output_schema=self._output_schema(said),
            applied=applied,
            refused=self._credentials.wanted(security),
        )

    def _parameters(
        self, item: Mapping[str, Json], said: Mapping[str, Json], applied: Applied
    ) -> dict[str, Parameter]:
        """Return the parameters by the names of their arguments; the operation's own win."""
        found: dict[tuple[str, str], Parameter] = {}
        for node in (*as_list(item.get("parameters")), *as_list(said.get("parameters"))):
            each = read_parameter(self._document, node)
            name = each.name.lower() if each.where == "header" else each.name
            is_ours = each.where == "header" and name in _NOT_OURS
            if not is_ours and (each.where, name) not in applied.names:
                found[each.where, name] = each
        named: dict[str, Parameter] = {}
        for each in found.values():
            is_taken = each.name in named or each.name == "body"
            name = f"{each.name}_{each.where}" if is_taken else each.name
            while name in named:
                name += "_"
            named[name] = each
        return named

    def _output_schema(self, said: Mapping[str, Json]) -> dict[str, Json] | None:
        """Return the schema of the answer, if it is a JSON object and not too much to tell."""
        try:
            responses = self._document.mapping(said.get("responses") or {}, "`responses`")
            good = min((code for code in responses if re.fullmatch(r"2\d\d|2XX", code)), default="")
            content = self._document.mapping(responses.get(good) or {}, "it").get("content")
            kinds = as_object(content) or {}
            if not kinds or not all("json" in each.lower() for each in kinds):
                return None
            form = as_object(next(iter(kinds.values()))) or {}
            if "schema" not in form:
                return None
            shaper = Shaper(self._document, is_answer=True)
            shaped = shaper.shape(form["schema"])
            whole = shaper.whole(shaped)
            if whole is None or "object" not in (whole.get("type"), *as_list(whole.get("type"))):
                return None
            return shaper.rooted({**whole, "type": "object"})
        except Unfit:
            return None


def _input_schema(
    shaper: Shaper, parameters: Mapping[str, Parameter], body: Body | None
) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    for name, each in parameters.items():
        properties[name] = _with_words(shaper.shape(each.schema), each.description)
    if body is not None:
        properties["body"] = _with_words(shaper.shape(body.schema), body.description)
    required = [name for name, each in parameters.items() if each.required]
    if body is not None and body.required:
        required.append("body")
    schema: dict[str, Json] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return shaper.rooted({**schema, "additionalProperties": False})


def _with_words(schema: Json, words: str) -> Json:
    if schema is False:
        return {"not": {}}
    members = as_object(schema) or {}
    return {**members, "description": brief(words)} if words.strip() else dict(members)


def _described(said: Mapping[str, Json], summary: str, request: str) -> str:
    words = brief(said.get("description"), 2_000)
    parts = [words if words.startswith(summary) else f"{summary}\n{words}".strip()]
    if said.get("deprecated") is True:
        parts.append("Deprecated.")
    return "\n".join([*(each for each in parts if each), request])


def _named(path: str, method: str, item: Mapping[str, Json]) -> str:
    given = (as_object(item.get(method)) or {}).get("operationId")
    if isinstance(given, str) and given.strip():
        return given.strip()[:200]
    words = re.sub(r"[^A-Za-z0-9]+", "_", _SLOT.sub(r"by_\1", path)).strip("_")
    return f"{method}_{words or 'root'}"[:200]


def _check_path(path: str, parameters: Mapping[str, Parameter]) -> None:
    """Refuse a path that is none, or that its parameters do not fill.

    Raises:
        Unfit: says what to change.
    """
    plain = _SLOT.sub("", path)
    if not path.startswith("/") or re.search(r"[\x00-\x20\x7f{}?#\\]", plain):
        raise Unfit(f"the path {path[:200]!r} is none: begin it with `/`, without query and spaces")
    if any(_is_dots(segment) for segment in path.split("/")) or not path.isascii():
        raise Unfit(f"the path {path[:200]!r} leads elsewhere: write it in full, encoded")
    slots = set(_SLOT.findall(path))
    given = {each.name for each in parameters.values() if each.where == "path"}
    if missing := slots - given:
        raise Unfit(f"its path has {', '.join(sorted(missing))[:200]!r}: describe that parameter")
    if unused := given - slots:
        raise Unfit(f"its path has no place for {', '.join(sorted(unused))[:200]!r}")


def _is_dots(segment: str) -> bool:
    """Tell whether a segment of a path means the folder itself or the one above, encoded or not."""
    plain = unquote(unquote(segment))
    return any(part.partition(";")[0] in (".", "..") for part in re.split(r"[/\\]", plain))
