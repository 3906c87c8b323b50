"""`approve`: which calls wait for a person, and the answer that one gives them."""

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guildry.errors import QuestionNotFound, UsageError
from guildry.server.commands.arguments import AsJson, Config, Home
from guildry.server.commands.exits import Exit
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from guildry.server.config import Settings
    from guildry.tools.asking.board import QuestionBoard

__all__ = ["approve"]

_SHOWN_CHARACTERS = 500


def approve(
    question: Annotated[
        str | None, typer.Argument(help="Its id; the beginning is enough. Without: list them.")
    ] = None,
    deny: Annotated[bool, typer.Option("--deny", help="Refuse it.")] = False,
    answer: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The answer to a form: one object, or one value."),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List what waits for a person, or allow, answer or refuse one of these questions."""
    flags = {"home": home, "config": config}
    work = partial(_approve, question, deny, answer, as_json)
    raise typer.Exit(perform(work, flags, as_json=as_json))


async def _approve(
    question: str | None, deny: bool, answer: str | None, as_json: bool, settings: "Settings"
) -> int:
    if question is None and (deny or answer is not None):
        raise UsageError("`--deny` and `--answer` are for one question: give its id")
    if deny and answer is not None:
        raise UsageError("`--deny` and `--answer` exclude each other: give one of them")
    async with _reached(settings) as way:
        asked = await way.questions()
        if question is None:
            _list(asked, as_json, is_live=way.is_live)
            return Exit.OK
        chosen = _chosen(question, asked, is_live=way.is_live)
        told = await way.answer({"question": chosen["question"], **_reply(chosen, deny, answer)})
    if as_json:
        write(json.dumps(told, ensure_ascii=False))
    else:
        write(f"{told['question']} is answered: {told['action']}")
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Way:
    """How questions are reached: through a live server, or where they are kept."""

    is_live: bool
    questions: Callable[[], Awaitable[list[dict[str, Any]]]]
    answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def _reached(settings: "Settings") -> AsyncGenerator[_Way]:
    """Find the questions of this home. A call at the command line serves no socket, but asks."""
    from guildry.server.commands.door import open_live_door

    async with open_live_door(settings) as door:
        if door is not None:

            async def questions() -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = (await door.ask("list_questions", {}))["questions"]
                return found

            yield _Way(True, questions, partial(door.ask, "answer_question"))
            return
    async with _kept(settings) as board:
        yield _Way(False, partial(_open, board), partial(_answered, board))


@asynccontextmanager
async def _kept(settings: "Settings") -> "AsyncGenerator[QuestionBoard]":
    from guildry.memory.questions import QuestionStore
    from guildry.memory.store import Store
    from guildry.tools.asking.board import QuestionBoard

    async with Store.open(settings.database) as store:
        yield QuestionBoard(QuestionStore(store), wait_s=settings.ask_wait_s)


async def _open(board: "QuestionBoard") -> list[dict[str, Any]]:
    return [each.as_json() for each in await board.open()]


async def _answered(board: "QuestionBoard", given: dict[str, Any]) -> dict[str, Any]:
    from guildry.server.parts import LOCAL
    from guildry.tools.asking.questions import Answer
    from guildry.tools.asking.replies import reply_to

    asked = {each.id: each for each in await board.open()}.get(given["question"])
    if asked is None:
        raise QuestionNotFound(f"{given['question']!r} is not open any more")
    is_denied = given.get("decline", False)
    answer = Answer("decline", by=LOCAL) if is_denied else None
    answer = answer or reply_to(asked.question, given["answer"], LOCAL)
    await board.answer(asked.id, answer)
    return {"question": asked.id, "run": asked.run, "action": answer.action}


def _chosen(text: str, asked: list[dict[str, Any]], *, is_live: bool) -> dict[str, Any]:
    """Return the question of that id, or the only one whose id begins so.

    Raises:
        QuestionNotFound: there is none, or several.
    """
    near = [each for each in asked if str(each["question"]).startswith(text)]
    found = next((each for each in near if each["question"] == text), None)
    if found is not None or len(near) == 1:
        return found or near[0]
    if near:
        raise QuestionNotFound(f"{len(near)} questions begin with {text!r}: give more of the id")
    where = "see `guildry approve`" if is_live else _NOBODY_ASKS
    raise QuestionNotFound(f"no open question begins with {text!r}: {where}")


_NOBODY_ASKS = (
    "no server of this home is running, and questions end with the call that asks them: start one"
    " with `guildry serve`, or name its home with `--home`"
)


def _reply(asked: dict[str, Any], deny: bool, answer: str | None) -> dict[str, Any]:
    """Return the arguments of `answer_question`."""
    if deny:
        return {"decline": True}
    if answer is None:
        if asked["kind"] != "approval":
            schema = json.dumps(asked.get("schema", {}), ensure_ascii=False)
            raise UsageError(f"this is a form: give `--answer` with what it asks for: {schema}")
        return {"answer": True}
    try:
        return {"answer": json.loads(answer)}
    except ValueError:
        return {"answer": answer}


def _list(asked: list[dict[str, Any]], as_json: bool, *, is_live: bool) -> None:
    if as_json:
        write(json.dumps({"questions": asked}, ensure_ascii=False))
        return
    now = time.time()
    for each in asked:
        _show(each, now)
    if not asked:
        write("Nothing waits for an answer." if is_live else f"Nothing waits: {_NOBODY_ASKS}.")


def _show(asked: dict[str, Any], now: float) -> None:
    from guildry.server.console import plain

    age, left = now - asked["asked_at"], asked["expires_at"] - now
    tool = plain(f"{asked['tool']} ({asked['plug']})" if asked["tool"] else "-")
    chain = plain(" → ".join(asked["chain"]), _SHOWN_CHARACTERS)
    head = f"{asked['question']}  {asked['kind']}  asked {age:.0f} s ago, {left:.0f} s left"
    write(f"{head}  {tool}  {chain}")
    for line in str(asked["message"]).splitlines():
        write(f"  {plain(line, _SHOWN_CHARACTERS)}")
    for name, value in asked.get("arguments", {}).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        write(f"    {plain(name)}: {plain(text, _SHOWN_CHARACTERS)}")
    if asked.get("schema"):
        fields = json.dumps(asked["schema"], ensure_ascii=False)
        write(f"  answer: {plain(fields, _SHOWN_CHARACTERS)}")
