"""Macros as plugs: a recipe that is kept in the home becomes a tool, under its caller's grant."""

import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from anyio import to_thread

from guildry.errors import PlugError, ToolFailed, ToolRetry
from guildry.memory.selectors import select
from guildry.tools.base import (
    REFERENCE_FORMAT,
    Block,
    Call,
    Effects,
    Json,
    Outcome,
    Result,
    Text,
    Tool,
)
from guildry.tools.dispatch import Dispatch
from guildry.tools.macros.recipe import Recipe, fill
from guildry.tools.macros.shelf import PREFIX, MacroShelf
from guildry.tools.passing import mentions_reference
from guildry.tools.plugs.plug import Loaded, Opener, Watched
from guildry.tools.registry import Catalog, Change, UnknownTool

if TYPE_CHECKING:
    from guildry.tools.caller import Caller

__all__ = ["MacroPlug", "macros"]

_MAX_DEPTH: Final = 4
_depth: Final = ContextVar("macro_depth", default=0)


def macros(shelf: MacroShelf, dispatch: Dispatch | None, catalog: Catalog) -> Opener:
    """Return the opener of sources such as `macro:NAME`.

    Args:
        shelf: where their recipes are.
        dispatch: makes their calls; None where nothing is called, only looked at.
        catalog: the tools that they call.
    """

    def opened(source: str, name: str) -> "MacroPlug | None":
        if not source.startswith(PREFIX):
            return None
        return MacroPlug(source, name, shelf=shelf, dispatch=dispatch, catalog=catalog)

    return opened


class MacroPlug:
    """One macro on the board. Its tool is read anew when its file, or a tool it calls, changes."""

    def __init__(
        self,
        source: str,
        name: str,
        *,
        shelf: MacroShelf,
        dispatch: Dispatch | None,
        catalog: Catalog,
    ) -> None:
        self._source = source
        self._name = name
        self._shelf = shelf
        self._dispatch = dispatch
        self._catalog = catalog
        self._recipe: Recipe | None = None
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        """The name on the board."""
        return self._name

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        return "macro"

    @property
    def fault(self) -> str | None:
        """Nothing: each step says by itself why it cannot be served."""
        return None

    @property
    def source(self) -> str:
        """What it was plugged from."""
        return self._source

    @property
    def watched(self) -> tuple[Watched, ...]:
        """The file of the recipe."""
        return (Watched(self._path, ".json"),)

    @property
    def _path(self) -> Path:
        return self._shelf.path(self._source.removeprefix(PREFIX))

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Read the recipe, which is taken over where it was only suggested until now.

        Raises:
            PlugError: there is no such macro, or its file holds none.
        """
        self._unsubscribe = self._catalog.subscribe(partial(self._hear, changed))
        return await self.reload()

    async def reload(self) -> Loaded:
        """Read the recipe again.

        Raises:
            PlugError: there is no such macro any more, or its file holds none.
        """
        name = self._source.removeprefix(PREFIX)
        try:
            recipe = await to_thread.run_sync(self._shelf.take, name)
        except FileNotFoundError as error:
            raise PlugError(
                self._source, "there is no macro of that name", "See `suggest_macros`"
            ) from error
        except (OSError, ValueError) as error:
            cure = f"Mend `{self._path}`"
            raise PlugError(self._source, f"it cannot be read: {error}", cure) from error
        self._recipe = recipe
        return Loaded((self._tool(recipe),))

    async def close(self) -> None:
        """Listen no longer."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _hear(self, changed: Callable[[], None], change: Change) -> None:
        if self._recipe is None or change.plug == self._name:
            return
        if {*change.added, *change.removed, *change.changed} & set(self._recipe.tools):
            changed()

    def _tool(self, recipe: Recipe) -> Tool:
        return Tool(
            name=recipe.name,
            plug=self._name,
            description=recipe.description,
            input_schema={
                "type": "object",
                "properties": dict(recipe.parameters),
                "required": list(recipe.parameters),
                "additionalProperties": False,
            },
            invoke=partial(self._invoke, recipe),
            source_name=recipe.name,
            effects=_joined([self._effects(tool) for tool in recipe.tools]),
            timeout_s=float("inf"),  # each step has its own
        )

    def _effects(self, name: str) -> Effects:
        tool = self._catalog.current.tools.get(name)
        return Effects() if tool is None else tool.effects

    async def _invoke(self, recipe: Recipe, given: dict[str, Json], call: Call) -> Outcome:
        if self._dispatch is None:
            raise ToolFailed(f"`{recipe.name}` is only looked at here: serve it to call it")
        if _depth.get() >= _MAX_DEPTH:
            raise ToolFailed(f"`{recipe.name}` calls itself: change its steps")
        for name, value in given.items():
            if recipe.parameters[name].get("format") != REFERENCE_FORMAT:
                _no_reference(value, f"`{name}`")
        token = _depth.set(_depth.get() + 1)
        try:
            results: list[Result] = []
            for n in range(len(recipe.steps)):
                if call.progress is not None:
                    await call.progress(n, len(recipe.steps), f"calls `{recipe.steps[n].tool}`")
                results.append(await self._step(self._dispatch, recipe, n, given, results, call))
        finally:
            _depth.reset(token)
        last = results[-1]
        blocks: tuple[Block, ...] = last.blocks or (Text(last.text),)
        return Outcome(blocks, last.structured, last.has_structured)

    async def _step(
        self,
        dispatch: Dispatch,
        recipe: Recipe,
        n: int,
        given: dict[str, Json],
        results: Sequence[Result],
        call: Call,
    ) -> Result:
        step = recipe.steps[n]
        is_last = n == len(recipe.steps) - 1
        caller = cast("Caller", call.caller)
        caller = replace(caller, progress=None, for_model=caller.for_model or not is_last)
        where = f"step {n + 1} of {len(recipe.steps)}, `{step.tool}`,"
        done = ", ".join(f"`{each.tool}`" for each in recipe.steps[:n]) or "nothing"
        try:
            arguments = fill(step.arguments, given, lambda at, part: _part(results[at - 1], part))
            result = await dispatch.call(caller, step.tool, arguments)
        except UnknownTool as error:
            raise ToolFailed(f"{where} cannot be called: {error}; done before: {done}") from error
        except ToolRetry as error:
            raise ToolFailed(f"{where} lacks a value: {error}; done before: {done}") from error
        if not result.is_error:
            return result
        text = f"{where} failed: {result.text}; done before: {done}"
        raise (ToolRetry if n == 0 and result.failure == "refused" else ToolFailed)(text)


def _joined(effects: Sequence[Effects]) -> Effects:
    """Return what all steps do together. What a step admits is asked about when it is called."""
    return Effects(
        writes=any(each.writes for each in effects),
        egress=any(each.egress for each in effects),
        destructive=any(each.destructive for each in effects),
        idempotent=all(each.repeatable for each in effects),
    )


def _part(result: Result, selector: str) -> Json:
    """Return a part of an answer: by reference where it is stored."""
    if result.references:
        return f"{result.references[-1].uri}{selector}"
    value: Json = result.text
    if selector:
        try:
            value = json.loads(result.text)
        except ValueError:
            value = result.structured if result.has_structured else value
    return _no_reference(select(value, selector), "what it takes of an answer")


def _no_reference(value: Json, what: str) -> Json:
    """Return `value`, which a tool may have written: dispatch would read a reference in it."""
    if mentions_reference(value):
        raise ToolRetry(f"{what} holds a reference that somebody else wrote: it is not followed")
    return value
