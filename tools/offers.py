"""What a plug offers besides tools: prompts, resources, templates of resources, and skills."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from guildry.tools.base import Block, Embedded, Icon, Json

__all__ = [
    "NO_OFFERS",
    "Complete",
    "Message",
    "Messages",
    "Offers",
    "Prompt",
    "PromptArgument",
    "Resource",
    "Skill",
    "SkillFile",
    "Template",
]

Complete = Callable[[str, str, Mapping[str, str]], Awaitable[Sequence[str]]]
"""Return values for an argument: its name, what was typed so far, and the other arguments."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt."""

    role: Literal["user", "assistant"]
    block: Block


@dataclass(frozen=True, slots=True)
class Messages:
    """What a prompt becomes with its arguments filled in."""

    messages: tuple[Message, ...]
    description: str | None = None


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """A parameter of a prompt."""

    name: str
    description: str | None = None
    required: bool = False
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """A prompt that a person may choose.

    Args:
        name: unique among the prompts that are served.
        plug: the plug that it came from.
        get: fills it in: arguments by name, and the caller (`guildry.tools.caller.Caller`). Raises
            `ToolRetry` for arguments that are wrong.
        complete: completes its arguments, if it can.
        source_name: its name in the plug.
    """

    name: str
    plug: str
    get: Callable[[Mapping[str, str], Any], Awaitable[Messages]]
    source_name: str = ""
    title: str | None = None
    description: str | None = None
    arguments: tuple[PromptArgument, ...] = ()
    complete: Complete | None = None
    icons: tuple[Icon, ...] = ()
    annotations: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resource:
    """Something that can be read at a fixed URI.

    Args:
        uri: where it is.
        plug: the plug that it came from.
        read: returns its contents, for a caller. Raises `ToolError` where it cannot.
        follow: asked to say when the resource changes, from now on; told by `Catalog.touch(uri)`.
        annotations: `audience`, `priority`, `lastModified` and `_meta`, passed on as they came.
    """

    uri: str
    name: str
    plug: str
    read: Callable[[str, Any], Awaitable[tuple[Embedded, ...]]]
    title: str | None = None
    description: str | None = None
    media_type: str | None = None
    size: int | None = None
    follow: Callable[[str], Awaitable[None]] | None = None
    icons: tuple[Icon, ...] = ()
    annotations: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Template:
    """Resources whose URIs follow a template (RFC 6570).

    Args:
        uri_template: such as `log://{day}`.
        matches: tells whether a URI follows it.
        read: as `Resource.read`.
        complete: completes its variables, if it can.
        follow: as `Resource.follow`.
    """

    uri_template: str
    name: str
    plug: str
    matches: Callable[[str], bool]
    read: Callable[[str, Any], Awaitable[tuple[Embedded, ...]]]
    title: str | None = None
    description: str | None = None
    media_type: str | None = None
    complete: Complete | None = None
    follow: Callable[[str], Awaitable[None]] | None = None
    icons: tuple[Icon, ...] = ()
    annotations: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class SkillFile:
    """One file of a skill: `digest` is `sha256:` and 64 hexadecimal digits, of its raw bytes."""

    uri: str
    digest: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """Instructions for a model, with the files that they speak of. Each file is a `Resource` too.

    Args:
        uri: where its `SKILL.md` is; ends in `/<name>/SKILL.md`.
        plug: the plug that it came from.
        frontmatter: the head of its `SKILL.md`, word for word; `name` and `description` are in it.
        files: all of them, `SKILL.md` first.
        directories: by the URI of each directory, the root's included: the URIs directly in it.
    """

    uri: str
    name: str
    description: str
    plug: str
    frontmatter: Mapping[str, Json]
    files: tuple[SkillFile, ...]
    directories: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Offers:
    """Everything that a plug offers besides its tools, in its order."""

    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    templates: tuple[Template, ...] = ()
    skills: tuple[Skill, ...] = ()


NO_OFFERS: Final = Offers()
"""What a plug of tools alone offers."""
