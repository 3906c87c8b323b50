"""Manifests: what an MCP server offers, as plain JSON that can be kept. Knows no connection.

The same definitions are served whether they come from the server or from an earlier listing, and
nothing of the MCP library is needed for it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from guildry.tools.base import Json
from guildry.tools.plugs.options import NO_ENVIRONMENT, SandboxOptions
from guildry.tools.plugs.plug import Quarantined
from guildry.tools.schema import as_list, as_object

__all__ = ["Definition", "Endpoint", "Manifest"]

Definition = Mapping[str, Json]
"""A tool, a prompt, a resource or a template, as it is on the wire."""

_FORMAT: Final = 1
_LISTS: Final = ("tools", "prompts", "resources", "templates")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is: at a URL with headers, or behind a command with environment and folder."""

    url: str | None = None
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENVIRONMENT, repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: NO_ENVIRONMENT, repr=False)
    folder: Path = Path()
    sandbox: SandboxOptions | None = None

    @property
    def key(self) -> str:
        """The digest of all by which the list of the server can become another one.

        Values of the environment and of headers are in it, and cannot be read out of it.
        """
        told = {
            "format": _FORMAT,
            "url": self.url,
            "command": self.command,
            "env": dict(self.env),
            "headers": dict(self.headers),
            "folder": str(self.folder),
            "sandbox": None if self.sandbox is None else asdict(self.sandbox),
        }
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a server offered when it was listed.

    Args:
        protocol: the version of the protocol that was spoken.
        server: what it says of itself: name, version and more; empty where it says nothing.
        capabilities: what it can do.
        instructions: what it tells models of itself.
        tools: definitions, in its order.
        prompts: definitions, in its order.
        resources: definitions, in its order.
        templates: definitions, in its order.
        left_out: what was no valid definition, and why.
    """

    protocol: str
    server: Mapping[str, Json]
    capabilities: Mapping[str, Json]
    instructions: str = ""
    tools: tuple[Definition, ...] = ()
    prompts: tuple[Definition, ...] = ()
    resources: tuple[Definition, ...] = ()
    templates: tuple[Definition, ...] = ()
    left_out: tuple[Quarantined, ...] = ()

    @property
    def tells(self) -> bool:
        """Whether the server tells when a resource changes."""
        resources = as_object(self.capabilities.get("resources"))
        return resources is not None and resources.get("subscribe") is True

    @property
    def completes(self) -> bool:
        """Whether the server completes arguments."""
        return self.capabilities.get("completions") is not None

    def as_json(self) -> dict[str, Json]:
        """Return it as it is kept."""
        return {
            "format": _FORMAT,
            "protocol": self.protocol,
            "server": dict(self.server),
            "capabilities": dict(self.capabilities),
            "instructions": self.instructions,
            "tools": [dict(each) for each in self.tools],
            "prompts": [dict(each) for each in self.prompts],
            "resources": [dict(each) for each in self.resources],
            "templates": [dict(each) for each in self.templates],
            "left_out": [each.as_json() for each in self.left_out],
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Json]) -> Self | None:
        """Return the manifest that was kept, or None where it was kept in another form."""
        if kept.get("format") != _FORMAT:
            return None
        lists = {name: tuple(as_list(kept.get(name))) for name in _LISTS}
        left_out = (as_object(each) or {} for each in as_list(kept.get("left_out")))
        return cls(
            protocol=str(kept.get("protocol")),
            server=as_object(kept.get("server")) or {},
            capabilities=as_object(kept.get("capabilities")) or {},
            instructions=str(kept.get("instructions") or ""),
            **lists,
            left_out=tuple(Quarantined(str(x["tool"]), str(x["reason"])) for x in left_out),
        )
