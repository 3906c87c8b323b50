"""What of a plug's offers is fit to be served. What is not is left out alone, with its reason.

Whatever a plug says, looking at one of its definitions ends within bounds, and hurts no other.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from guildry.tools.base import Json, Tool
from guildry.tools.offers import Offers, Prompt, Resource, Template
from guildry.tools.plugs.plug import Loaded, Quarantined
from guildry.tools.plugs.schema_bounds import bounds_fault, is_plainly_right
from guildry.tools.registry import tool_name
from guildry.tools.schema import as_list, as_object, schema_fault
from guildry.tools.uri_templates import BadTemplate, UriTemplate, uri_fault

__all__ = ["admit"]

T = TypeVar("T")

_MAX_OFFERS: Final = 10_000
_MAX_NAME: Final = 256
_MAX_WORDS: Final = 20_000
_MAX_ARGUMENTS: Final = 100
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DRAFT_4: Final = "http://json-schema.org/draft-04/schema#"
_DRAFT_4_FLAGS: Final = ("exclusiveMinimum", "exclusiveMaximum")
_OURS: Final = ("ref:", "run:")


def admit(loaded: Loaded) -> Loaded:
    """Return what of `loaded` can be served, tools under names that every client takes."""
    tools: dict[str, Tool] = {}
    sources: set[str] = set()
    left_out = list(loaded.quarantined)
    for n, offered in enumerate(loaded.tools):
        tool = _dated(offered)
        source = tool.source_name or tool.name
        if n >= _MAX_OFFERS:
            left_out.append(Quarantined("tool", f"there are over {_MAX_OFFERS:,}: offer fewer"))
            break
        if reason := _fault(tool, source in sources):
            left_out.append(Quarantined(f"{source:.{_MAX_NAME}}", reason))
            continue
        sources.add(source)
        name = _free(tool_name(tool.name), tools)
        tools[name] = replace(tool, name=name, source_name=source)
    offers, others = _admitted(loaded.offers)
    return replace(
        loaded, tools=tuple(tools.values()), quarantined=(*left_out, *others), offers=offers
    )


def _fault(tool: Tool, is_repeated: bool) -> str | None:
    if is_repeated:
        return "the source offers two tools of this name: the first one is served, rename this one"
    if fault := _words_fault(tool.title, tool.description):
        return fault
    try:
        fault = _schema_fault(tool.input_schema)
        if fault is not None or tool.output_schema is None:
            return fault
        fault = _schema_fault(tool.output_schema, is_output=True)
    except Exception as error:  # whatever a schema may do to those who read it
        return f"its schema cannot be read ({type(error).__name__}): say it more plainly"
    return fault.replace("input", "output", 1) if fault else None


def _dated(tool: Tool) -> Tool:
    """Return a tool whose schema names the dialect that it is plainly written in.

    `"exclusiveMinimum": true` is of draft 4; in the present one it is a number.
    """
    schema = as_object(tool.input_schema)
    if schema is None or "$schema" in schema or bounds_fault(schema) or not _is_draft_4(schema):
        return tool
    return replace(tool, input_schema={"$schema": _DRAFT_4, **schema})


def _is_draft_4(schema: Json) -> bool:
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        members = as_object(node)
        if members is None:
            waiting.extend(as_list(node))
            continue
        if any(isinstance(members.get(key), bool) for key in _DRAFT_4_FLAGS):
            return True
        waiting.extend(members.values())
    return False


def _schema_fault(schema: Json, *, is_output: bool = False) -> str | None:
    members = as_object(schema)
    if members is None or (not is_output and members.get("type", "object") != "object"):
        return schema_fault(schema)
    if fault := bounds_fault(schema):
        return fault
    if is_plainly_right(schema):
        return None
    return schema_fault(
        {"type": "object", "properties": {"value": schema}} if is_output else schema
    )


def _free(name: str, taken: dict[str, Tool]) -> str:
    free, n = name, 2
    while free in taken:
        suffix = f"_{n}"
        free, n = name[: 64 - len(suffix)] + suffix, n + 1
    return free


def _admitted(offers: Offers) -> tuple[Offers, list[Quarantined]]:
    left_out: list[Quarantined] = []

    def fit(
        what: str, offered: Sequence[T], key: Callable[[T], str], fault: _Fault[T]
    ) -> tuple[T, ...]:
        kept: dict[str, T] = {}
        for each in offered:
            reason = fault(each)
            if reason is None and key(each) in kept:
                reason = "the source offers two of them: the first one is served"
            if reason is None and len(kept) >= _MAX_OFFERS:
                left_out.append(Quarantined(what, f"there are over {_MAX_OFFERS:,}: offer fewer"))
                break
            if reason is None:
                kept[key(each)] = each
            else:
                left_out.append(
                    Quarantined(f"{key(each) or what:.{_MAX_NAME}}", f"{what}: {reason}")
                )
        return tuple(kept.values())

    admitted = replace(
        offers,
        prompts=fit("prompt", offers.prompts, lambda each: each.name, _prompt_fault),
        resources=fit("resource", offers.resources, lambda each: each.uri, _resource_fault),
        templates=fit(
            "template", offers.templates, lambda each: each.uri_template, _template_fault
        ),
    )
    return admitted, left_out


_Fault = Callable[[T], str | None]


def _prompt_fault(prompt: Prompt) -> str | None:
    if len(prompt.arguments) > _MAX_ARGUMENTS:
        return f"it has over {_MAX_ARGUMENTS} arguments: take fewer"
    names = [each.name for each in prompt.arguments]
    if len(set(names)) < len(names):
        return "two of its arguments have one name: rename one"
    faults = (_name_fault(each) for each in (prompt.name, *names))
    return next((each for each in faults if each), None) or _words_fault(
        prompt.title, prompt.description, *(each.description for each in prompt.arguments)
    )


def _resource_fault(resource: Resource) -> str | None:
    if resource.uri.startswith(_OURS):
        return f"URIs with `{resource.uri[:4]}` are Guildry's own: use another scheme"
    words = _words_fault(resource.title, resource.description)
    return uri_fault(resource.uri) or _name_fault(resource.name) or words


def _template_fault(template: Template) -> str | None:
    if template.uri_template.startswith(_OURS):
        return f"URIs with `{template.uri_template[:4]}` are Guildry's own: use another scheme"
    try:
        UriTemplate.of(template.uri_template)
    except BadTemplate as error:
        return str(error)
    return _name_fault(template.name) or _words_fault(template.title, template.description)


def _name_fault(name: str) -> str | None:
    if not name.strip():
        return "a name is empty: give one"
    if len(name) > _MAX_NAME:
        return f"the name {name!r:.40} has {len(name):,} characters: use at most {_MAX_NAME}"
    if _CONTROL.search(name):
        return f"the name {name!r:.100} holds control characters: leave them out"
    return None


def _words_fault(*words: str | None) -> str | None:
    longest = max((len(each) for each in words if each), default=0)
    if longest > _MAX_WORDS:
        return f"its description has {longest:,} characters: use at most {_MAX_WORDS:,}"
    return None
