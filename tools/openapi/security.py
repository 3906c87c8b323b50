"""Credentials of an API: taken from what is said of its plug, put on requests, shown to nobody.

Source: OpenAPI 3.1.1, section 4.8.27. A scheme takes its value from the variable of its name among
the plug's `env` (`petstore_auth`, or `PETSTORE_AUTH`); `headers` go with every request.
"""

import base64
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from guildry.tools.base import Json
from guildry.tools.openapi.document import Document, Unfit
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.schema import as_list, as_object

__all__ = ["Applied", "Credentials"]

_SHORTEST: Final = 6
_OPEN: Final = re.compile(r"accept(-.*)?|content-type|user-agent|.*-version")
_SHOWN: Final = "[secret]"


@dataclass(frozen=True, slots=True)
class Applied:
    """Credentials as they go with a request: headers, encoded pairs of the query, and cookies."""

    headers: dict[str, str] = field(default_factory=dict[str, str])
    query: tuple[tuple[str, str], ...] = ()
    cookies: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[tuple[str, str]]:
        """Where, and under which names, they go: no argument of a call may stand there."""
        return frozenset(
            {("header", name.lower()) for name in self.headers}
            | {("query", name) for name, _ in self.query}
            | {("cookie", each.partition("=")[0]) for each in self.cookies}
        )


class Credentials:
    """What of a plug's options are credentials for a document."""

    def __init__(self, document: Document, options: PlugOptions) -> None:
        self._document = document
        self._options = options
        components = as_object(document.root.get("components")) or {}
        self._schemes = as_object(components.get("securitySchemes")) or {}
        self._values = {name: value for name in self._schemes if (value := self._value(name))}
        headers = options.headers.items()
        whole = [value for name, value in headers if not _OPEN.fullmatch(name.lower())]
        whole += [*self._values.values(), *self._encoded()]
        last = [re.split(r"[\s:]", value)[-1] for value in whole]
        self._secrets = sorted(
            {each for each in (*whole, *last) if len(each) >= _SHORTEST}, key=len
        )[::-1]

    def applied(self, security: Json) -> Applied:
        """Return what goes with an operation: of its alternatives, the first that can be had."""
        chosen: list[str] = []
        for alternative in as_list(security):
            names = list(as_object(alternative) or {})
            if names and all(name in self._values for name in names):
                chosen = names
                break
        headers = dict(self._options.headers)
        query: dict[str, str] = {}
        cookies: list[str] = []
        given = {name.lower() for name in headers}
        for name in chosen:
            where, key, value = self._placed(name)
            if where == "header" and key.lower() not in given:
                headers[key] = value
            elif where == "query":
                query[quote(key, safe="")] = quote(value, safe="")
            elif where == "cookie":
                cookies.append(f"{key}={quote(value, safe='')}")
        return Applied(headers, tuple(query.items()), tuple(cookies))

    def wanted(self, security: Json) -> str:
        """Return what to give where the API refuses an operation for want of credentials."""
        for alternative in as_list(security):
            for name in as_object(alternative) or {}:
                if name not in self._values:
                    return f"give `env.{name}` or the `headers` of its plug"
        return "check the `headers` and `env` of its plug"

    def without(self, text: str) -> str:
        """Return a text without the values that nobody may see."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, _SHOWN)
        return text

    def _value(self, name: str) -> str | None:
        env = self._options.env
        return env.get(name) or env.get(re.sub(r"[^A-Z0-9]", "_", name.upper()))

    def _encoded(self) -> list[str]:
        return [self._placed(name)[2] for name in self._values]

    def _placed(self, name: str) -> tuple[str, str, str]:
        """Return where the value of a scheme goes, under which name, and as what."""
        value = self._values[name]
        try:
            scheme = self._document.mapping(self._schemes[name], f"the scheme `{name}`")
        except Unfit:
            return "header", "Authorization", f"Bearer {value}"
        kind = str(scheme.get("type"))
        if kind == "apiKey":
            return str(scheme.get("in")), str(scheme.get("name")), value
        way = str(scheme.get("scheme", "bearer")).lower() if kind == "http" else "bearer"
        if way == "basic":
            pair = value if ":" not in value else base64.b64encode(value.encode()).decode()
            return "header", "Authorization", f"Basic {pair}"
        return "header", "Authorization", f"{'Bearer' if way == 'bearer' else way} {value}"
