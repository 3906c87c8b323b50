"""`token`: make, list and revoke the tokens that callers of the HTTP endpoint show."""

import json
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from guildry.errors import UsageError
from guildry.server.commands.arguments import AsJson, Config, Home
from guildry.server.commands.exits import Exit, NotFound
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from guildry.server.config import Settings
    from guildry.server.http.auth_tokens import Token

__all__ = ["token"]

_DAY_S: Final = 86_400.0
_MAX_DAYS: Final = 36_500


def token(
    action: Annotated[Literal["new", "list", "revoke"], typer.Argument(help="What to do.")],
    name: Annotated[str | None, typer.Argument(help="Whose token; not for `list`.")] = None,
    scopes: Annotated[
        str, typer.Option(help="What it allows: of tools, teams and admin.")
    ] = "tools,teams",
    days: Annotated[int | None, typer.Option(help="Days that it holds; default: for ever.")] = None,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make, list or revoke the tokens that callers over HTTP show."""
    work = partial(_token, action, name, scopes, days, as_json)
    raise typer.Exit(perform(work, {"home": home, "config": config}, as_json=as_json))


async def _token(
    action: str,
    name: str | None,
    scopes: str,
    days: int | None,
    as_json: bool,
    settings: "Settings",
) -> int:
    path = settings.http.tokens or settings.home / "tokens.toml"
    if action == "list":
        return await _list(path, as_json)
    if name is None:
        raise UsageError(f"`NAME` is missing: say whose token, as in `guildry token {action} ada`")
    if action == "revoke":
        return await _revoke(path, name, as_json)
    return await _new(path, name, scopes, days, as_json, is_served=settings.http.tokens is not None)


async def _new(
    path: Path, name: str, scopes: str, days: int | None, as_json: bool, *, is_served: bool
) -> int:
    import anyio.to_thread

    from guildry.server.http.token_edits import add_token

    if days is not None and not 1 <= days <= _MAX_DAYS:
        raise UsageError(f"`--days` is {days}: give 1 to {_MAX_DAYS}, or leave it out")
    ends = None if days is None else datetime.fromtimestamp(time.time() + days * _DAY_S, UTC)
    allowed = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    made = await anyio.to_thread.run_sync(partial(add_token, path, name, allowed, expires_at=ends))
    if as_json:
        write(json.dumps({"name": name, "token": made, "scopes": allowed, "file": str(path)}))
        return Exit.OK
    write(made)
    hint = "" if is_served else f" Serve with `--set http.tokens={path}`."
    typer.echo(f"Keep it: it is shown this once. Its digest is in {path}.{hint}", err=True)
    return Exit.OK


async def _revoke(path: Path, name: str, as_json: bool) -> int:
    import anyio.to_thread

    from guildry.server.http.token_edits import remove_token

    if not await anyio.to_thread.run_sync(remove_token, path, name):
        raise NotFound(f"there is no token {name!r} in `{path}`: see `guildry token list`")
    if as_json:
        write(json.dumps({"name": name, "revoked": True}))
    else:
        write(f"revoked {name}: running servers take it no longer, and end what it has open")
    return Exit.OK


async def _list(path: Path, as_json: bool) -> int:
    import anyio.to_thread

    from guildry.server.http.auth_tokens import read_tokens

    there = await anyio.Path(path).exists()
    found = await anyio.to_thread.run_sync(read_tokens, path) if there else {}
    if as_json:
        write(
            json.dumps({"file": str(path), "tokens": [_as_json(each) for each in found.values()]})
        )
        return Exit.OK
    if not found:
        write(f"no tokens in {path}: make one with `guildry token new NAME`")
    for each in found.values():
        write(f"{each.name:<20}  {','.join(each.scopes):<18}  {_until(each)}")
    return Exit.OK


def _as_json(token: "Token") -> dict[str, object]:
    return {"name": token.name, "scopes": token.scopes, "expires_at": token.expires_at}


def _until(token: "Token") -> str:
    if token.expires_at is None:
        return "for ever"
    day = datetime.fromtimestamp(token.expires_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{'expired' if token.expires_at <= time.time() else 'until'} {day}"
