"""Code mode: programs are begun, and gone on with where they were cut off. Knows no server."""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import to_thread

from guildry.errors import ToolRetry
from guildry.tools.base import Call, Json, Outcome
from guildry.tools.code.calls import Calls, CodeParts, narrowed
from guildry.tools.code.interpreter import Interpreter
from guildry.tools.code.keeping import Keeping
from guildry.tools.code.limits import CodeLimits
from guildry.tools.code.names import function_names
from guildry.tools.code.program import Program
from guildry.tools.code.values import Ref, as_json
from guildry.tools.flow import join

if TYPE_CHECKING:
    from pydantic_monty import AsyncMontySession

    from guildry.tools.caller import Caller

__all__ = ["PREFIX", "CodeMode"]

PREFIX: Final = "code-"
"""How the ids of programs begin."""

_LAST: Final = "last"
_LISTED: Final = 5
_SHOWN_PRINTED: Final = 1_000


class CodeMode:
    """Run programs that a model wrote.

    Args:
        parts: what they work with.
        interpreter: where they run.
        limits: what each of them may use up.
    """

    def __init__(self, parts: CodeParts, interpreter: Interpreter, limits: CodeLimits) -> None:
        self._parts = parts
        self._interpreter = interpreter
        self._limits = limits

    async def run(self, call: Call, code: str, references: Mapping[str, str]) -> Outcome:
        """Run a program.

        Args:
            call: which runs it.
            code: its text.
            references: stored values that it has under names.

        Raises:
            ToolRetry: the program is wrong, or needs too much; says what to change.
        """
        size = len(code.encode("utf-8", "replace"))
        if size > self._limits.code_bytes:
            raise ToolRetry(
                f"`code` has {size:,} bytes: give at most {self._limits.code_bytes:,}, and values"
                " by references"
            )
        id = f"{PREFIX}{secrets.token_hex(5)}"
        async with self._at_work(call, id, code) as (program, calls, session):
            given = {_name(name): await calls.open([text], {}) for name, text in references.items()}
            for answer in given.values():
                if "error" in answer:
                    raise ToolRetry(answer["error"])
            return await self._done(await program.begin(session, given), program, calls)

    async def go_on(self, call: Call, id: str) -> Outcome:
        """Go on with a program that was cut off, where it was.

        What is known to be done is not done again. Of a call of which nothing is known, a person
        is asked; if none can be, the program is told.

        Args:
            call: which runs it.
            id: of the program, or `last`.

        Raises:
            ToolRetry: there is no such program of this caller's, or it fails.
        """
        caller: Caller = call.caller
        run, holder = caller.run, caller.grant.holder
        store = self._parts.suspended
        waiting = await store.waiting(run, holder)
        if id == _LAST and waiting:
            id = waiting[0].id
        found = await store.take(id, run, holder)
        if found is None:
            known = ", ".join(f"`{each.id}`" for each in waiting[:_LISTED])
            there = f"these can be gone on with: {known}" if known else "none was cut off"
            raise ToolRetry(f"there is no program {id[:40]!r} to go on with here: {there}")
        async with self._at_work(call, id, found.waiting["code"]) as (program, calls, session):
            join(found.waiting["labels"])
            value = await program.go_on(session, found.state, found.waiting)
            return await self._done(value, program, calls)

    @asynccontextmanager
    async def _at_work(
        self, call: Call, id: str, code: str
    ) -> "AsyncGenerator[tuple[Program, Calls, AsyncMontySession]]":
        """Give a program all that it needs, and keep or forget its state afterwards."""
        caller: Caller = call.caller
        if caller.grant.chain[-1:] and caller.grant.chain[-1].startswith(PREFIX):
            raise ToolRetry("a program cannot run another: write it as one")
        calls = Calls(self._parts, narrowed(caller, id), self._limits, call.ask)
        keeping = Keeping(self._parts.suspended, id, caller, self._limits.state_bytes)
        program = Program(code, calls, keeping, self._limits, call.progress)
        try:
            async with self._interpreter.session(self._limits) as session:
                with anyio.move_on_after(self._limits.wall_s):
                    yield program, calls, session
                    keeping.end()
                    return
        except ToolRetry as error:
            keeping.end()
            raise ToolRetry(_with_past(str(error), program, calls)) from error
        except BaseException:
            keeping.release()
            raise
        keeping.release()
        raise ToolRetry(self._set_aside(keeping, program, calls))

    async def _done(self, value: Any, program: Program, calls: Calls) -> Outcome:
        limit = self._limits.value_bytes
        told: dict[str, Json] = {"result": await to_thread.run_sync(as_json, value, limit)}
        if isinstance(value, Ref):
            told["sketch"] = value.sketch
        if program.printed.text:
            told["printed"] = program.printed.text
        if calls.made:
            told["calls"] = len(calls.made)
        return Outcome(structured=told, has_structured=True)

    def _set_aside(self, keeping: Keeping, program: Program, calls: Calls) -> str:
        over = f"the program was stopped after {self._limits.wall_s:g} s"
        if not keeping.is_kept:
            return _with_past(f"{over}: do less in one program", program, calls)
        return f"{over}: go on with it by `run_code` with `resume` = '{keeping.id}'"


def _name(name: str) -> str:
    """Return the name of a value that a program is given.

    Raises:
        ToolRetry: Python does not take it, or it is taken.
    """
    (function,) = function_names([name])
    if function != name or not name.isidentifier():
        raise ToolRetry(f"`references` has {name!r}, which is no name here: use `{function}`")
    return name


def _with_past(text: str, program: Program, calls: Calls) -> str:
    """Return what went wrong, with what was done before."""
    if calls.done:
        names = ", ".join(f"`{each}`" for each in calls.done)
        text = f"{text}\nThese calls were made before, and stay done: {names[:_SHOWN_PRINTED]}"
    printed = program.printed.text
    return f"{text}\nPrinted: {printed[-_SHOWN_PRINTED:]}" if printed else text
