"""Recipes: a sequence of calls, with what each is given. Knows their JSON form; calls nothing.

In the arguments of a step an object with one key stands for a value: `{"$parameter": "city"}` for
what the macro is given, `{"$result": 1, "select": "#/0/id"}` for a part of what step 1 answered,
and `{"$constant": …}` for anything, as it is.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from guildry.tools.base import Json
from guildry.tools.schema import as_list, as_object

__all__ = ["MAX_STEPS", "Recipe", "RecipeStep", "constant", "fill", "from_result", "parameter"]

MAX_STEPS: Final = 20
"""The most steps of one macro."""

_CONSTANT, _PARAMETER, _RESULT, _SELECT = "$constant", "$parameter", "$result", "select"
_MAX_DEPTH: Final = 32


class RecipeStep(BaseModel):
    """One call: the tool, and what it is given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)


class Recipe(BaseModel):
    """A macro, as it is kept in a file.

    Args:
        name: of the tool that it makes.
        description: what a model reads.
        parameters: JSON Schemas of what it takes, all of it required.
        steps: the calls, in order.
        support: how often the sequence was found.
        saved_calls: calls that its model would have been spared.
        saved_tokens: tokens that its model would have been spared, estimated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str = Field(default="", max_length=4_000)
    parameters: dict[str, dict[str, Any]] = Field(default_factory=dict)
    steps: tuple[RecipeStep, ...] = Field(min_length=1, max_length=MAX_STEPS)
    support: int = Field(default=0, ge=0)
    saved_calls: int = Field(default=0, ge=0)
    saved_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for n, step in enumerate(self.steps):
            for key, value in _named(step.arguments):
                if key == _PARAMETER and value not in self.parameters:
                    raise ValueError(f"step {n + 1} takes the parameter {value!r}: describe it")
                if key == _RESULT and not (isinstance(value, int) and 1 <= value <= n):
                    raise ValueError(
                        f"step {n + 1} takes the result of step {value!r}: name an earlier one"
                    )
        return self

    @classmethod
    def of(cls, text: str) -> "Recipe":
        """Return the recipe that a file holds.

        Raises:
            ValueError: it holds none; says what is wrong with it.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "it"
            raise ValueError(f"`{where}`: {first['msg']}") from error

    def as_text(self) -> str:
        """Return the recipe as a file holds it."""
        return json.dumps(self.model_dump(), ensure_ascii=False, indent=1) + "\n"

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that it calls, in order."""
        return tuple(step.tool for step in self.steps)


def constant(value: Json) -> Json:
    """Return what stands for `value` itself."""
    is_plain = as_object(value) is None and not as_list(value)
    return value if is_plain else {_CONSTANT: value}


def parameter(name: str) -> Json:
    """Return what stands for a parameter of the macro."""
    return {_PARAMETER: name}


def from_result(step: int, selector: str) -> Json:
    """Return what stands for a part of the answer of a step, counted from 1."""
    return {_RESULT: step, **({_SELECT: selector} if selector else {})}


def fill(
    template: Json, given: Mapping[str, Json], result: Callable[[int, str], Json], depth: int = 0
) -> Json:
    """Return `template` with everything that stands for a value replaced by it.

    Args:
        template: arguments of a step, or a part of them.
        given: the parameters.
        result: returns what a selector picks of the answer of a step, counted from 1.
        depth: how deep in the arguments this is.
    """
    if depth > _MAX_DEPTH:
        return template
    members = as_object(template)
    if members is None:
        items = as_list(template)
        return [fill(each, given, result, depth + 1) for each in items] if items else template
    if len(members) == 1 and _CONSTANT in members:
        return members[_CONSTANT]
    if len(members) == 1 and _PARAMETER in members:
        return given.get(members[_PARAMETER])
    if _RESULT in members and len(members) <= 2:
        return result(members[_RESULT], members.get(_SELECT, ""))
    return {key: fill(each, given, result, depth + 1) for key, each in members.items()}


def _named(template: Json) -> Sequence[tuple[str, Json]]:
    """Return every parameter and result that a template names."""
    found: list[tuple[str, Json]] = []
    waiting: list[Json] = [template]
    while waiting:
        node = waiting.pop()
        members = as_object(node)
        if members is None:
            waiting += as_list(node)
        elif len(members) == 1 and _CONSTANT in members:
            continue
        elif len(members) <= 2 and (keys := members.keys() & {_PARAMETER, _RESULT}):
            found += [(key, members[key]) for key in keys]
        else:
            waiting += members.values()
    return found
