"""What a Python function returned, as an outcome, and the schema that its hint promises."""

from dataclasses import dataclass, is_dataclass
from typing import Any, Final, cast

import pydantic
import structlog
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json

from guildry.errors import ToolFailed
from guildry.tools.base import Block, Embedded, Json, Link, Media, Outcome, Text

__all__ = ["Answers", "PlainSchema", "media_type", "untitled"]

log = structlog.get_logger()

_BLOCKS: Final = (Text, Media, Link, Embedded)
_SIGNATURES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
)


class PlainSchema(GenerateJsonSchema):
    """Generate JSON Schema without titles, which say what the names say."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Set none."""
        return False


def untitled(schema: Json) -> Json:
    """Return a schema without the titles that pydantic gives to models."""
    items: Any = schema
    if isinstance(schema, list):
        return [untitled(each) for each in items]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Json] = {}
    for key, value in cast("dict[str, Json]", schema).items():
        if key in ("properties", "$defs", "patternProperties", "dependentSchemas"):
            kept[key] = {name: untitled(each) for name, each in value.items()}
        elif key in ("default", "const", "enum", "examples", "required"):
            kept[key] = value
        elif key != "title":
            kept[key] = untitled(value)
    return kept


@dataclass(frozen=True, slots=True)
class Answers:
    """How what one function returns becomes an outcome.

    Args:
        tool: the name that errors speak of.
        schema: of the structured answer, where the return hint is a model, a typed dictionary or a
            dataclass; else None.
    """

    tool: str
    schema: dict[str, Json] | None = None
    _adapter: pydantic.TypeAdapter[Any] | None = None

    @classmethod
    def of(cls, tool: str, hint: Any) -> "Answers":
        """Read the return hint of a function."""
        if not _is_structured(hint):
            return cls(tool)
        try:
            adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(hint)
            schema = adapter.json_schema(mode="serialization", schema_generator=PlainSchema)
        except pydantic.PydanticUserError as error:
            reason = str(error).splitlines()[0]
            log.warning("output_schema_left_out", tool=tool, reason=reason)
            return cls(tool)
        return cls(tool, cast("dict[str, Json]", untitled(schema)), adapter)

    def outcome(self, value: object) -> Outcome:
        """Return `value` as an outcome.

        Raises:
            ToolFailed: it is not what the hint promises, or nothing that JSON can carry.
        """
        if isinstance(value, Outcome):
            return value
        if self._adapter is not None:
            return self._structured(self._adapter, value)
        return Outcome(_blocks(value) or (self._block(value),))

    def _structured(self, adapter: pydantic.TypeAdapter[Any], value: object) -> Outcome:
        try:
            structured = adapter.dump_python(adapter.validate_python(value), mode="json")
        except (pydantic.ValidationError, PydanticSerializationError) as error:
            raise ToolFailed(
                f"`{self.tool}` returned what its own return hint does not allow: {error}"
            ) from error
        return Outcome(structured=structured, has_structured=True)

    def _block(self, value: object) -> Block:
        if isinstance(value, str):
            return Text(value)
        if isinstance(value, bytes | bytearray):
            return Media(bytes(value), media_type(bytes(value[:16])))
        if isinstance(value, _BLOCKS):
            return value
        try:
            return Text(to_json(value, bytes_mode="base64").decode())
        except PydanticSerializationError as error:
            raise ToolFailed(
                f"`{self.tool}` returned {type(value).__name__}, which is no JSON value:"
                " it has to return text, bytes, numbers, lists or dictionaries"
            ) from error


def _blocks(value: object) -> tuple[Block, ...]:
    """Return the blocks of a list of nothing else, else none."""
    items: Any = value
    if not isinstance(value, list | tuple) or not all(isinstance(each, _BLOCKS) for each in items):
        return ()
    return tuple(items)


def _is_structured(hint: Any) -> bool:
    if not isinstance(hint, type):
        return False
    kind: type[object] = hint
    is_typed_dict = hasattr(kind, "__required_keys__")  # of `typing` or of `typing_extensions`
    return is_typed_dict or is_dataclass(kind) or issubclass(kind, pydantic.BaseModel)


def media_type(start: bytes) -> str:
    """Return the media type of bytes by how they begin."""
    if start[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"WEBP": "image/webp"}.get(start[8:12], _UNKNOWN)
    found = (kind for signature, kind in _SIGNATURES if start.startswith(signature))
    return next(found, _UNKNOWN)


_UNKNOWN: Final = "application/octet-stream"
