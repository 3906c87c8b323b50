"""References: the handles by which large values move. Knows their text form; stores nothing."""

import re
from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["INLINE_SHAPE", "Handle", "Reference", "parse_handle"]

_HANDLE: Final = re.compile(
    r"ref:(?P<uri>//)?(?P<key>[A-Za-z0-9_.-]{1,128})(?P<selector>#(?:/.*)?|\?(?:lines|query)=.+)?",
    re.DOTALL,
)

INLINE_SHAPE: Final = ("reference", "uri", "media_type", "size", "sketch", "preview")
"""The keys of the object that stands for a stored result, in order."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A reference as somebody wrote it: by short name or by URI, with an optional selector.

    `selector` keeps its first character: `#/rows/0` (JSON Pointer, RFC 6901), `?lines=1-20`
    (1-based, inclusive), `?query=rows[?total>10].id` (JMESPath).
    """

    kind: Literal["name", "uri"]
    key: str
    selector: str | None = None

    def __str__(self) -> str:
        slashes = "//" if self.kind == "uri" else ""
        return f"ref:{slashes}{self.key}{self.selector or ''}"


def parse_handle(text: str) -> Handle | None:
    """Return the handle that `text` is, or None when it is any other string."""
    if not text.startswith("ref:"):
        return None
    found = _HANDLE.fullmatch(text)
    if found is None:
        return None
    return Handle("uri" if found["uri"] else "name", found["key"], found["selector"])


@dataclass(frozen=True, slots=True)
class Reference:
    """The handle of a stored object.

    Args:
        id: unguessable, 128 random bits; names the object outside its run.
        name: short and readable; unique in its namespace.
        namespace: the run that made it, or the principal of a call outside any run.
        media_type: of the stored bytes, such as `application/json` or `text/plain`.
        size: in bytes.
        digest: of the stored bytes, with its algorithm: `sha256:<hex>`.
        sketch: the shape of the value in a few words, at most 120 characters.
        preview: the beginning of the value, at most 280 characters.
        owner: the holder of the grant under which it was made.
        readers: holders, besides the owner, that were given it.
        labels: where it came from, such as `untrusted:fetch`.
        created_at: seconds since the epoch.
        expires_at: seconds since the epoch, or None when it is kept.
    """

    id: str
    name: str
    namespace: str
    media_type: str
    size: int
    digest: str
    sketch: str
    preview: str
    owner: str
    created_at: float
    readers: frozenset[str] = field(default=frozenset())
    labels: frozenset[str] = field(default=frozenset())
    expires_at: float | None = None

    @property
    def uri(self) -> str:
        """The form that crosses the MCP boundary."""
        return f"ref://{self.id}"

    @property
    def short(self) -> str:
        """The form that a model writes."""
        return f"ref:{self.name}"

    def readable_by(self, holder: str) -> bool:
        """Tell whether `holder` made this object or was given it."""
        return holder == self.owner or holder in self.readers

    def as_json(self) -> dict[str, str | int]:
        """Return the object that stands for the value in a result (keys: `INLINE_SHAPE`)."""
        return {
            "reference": self.short,
            "uri": self.uri,
            "media_type": self.media_type,
            "size": self.size,
            "sketch": self.sketch,
            "preview": self.preview,
        }
