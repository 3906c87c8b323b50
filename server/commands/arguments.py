"""The options that several commands share, as the command-line library takes them."""

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from guildry.server.commands.options import CONFIG, HOME, Option

__all__ = ["AsJson", "Config", "Home", "taking"]

Home = Annotated[str | None, typer.Option(HOME.flag, metavar=HOME.metavar, help=HOME.help)]
Config = Annotated[str | None, typer.Option(CONFIG.flag, metavar=CONFIG.metavar, help=CONFIG.help)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value, for programs.")]


def taking(
    options: Sequence[Option],
    command: Callable[..., None],
    *others: tuple[str, Any, Any],
) -> Callable[..., None]:
    """Return `command` with a signature that has the options of a table.

    Args:
        options: the table.
        command: called with every option by name.
        others: further parameters, before the options: name, annotation and default.
    """

    def call(**given: object) -> None:
        command(**given)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, kind, default in others
    ]
    parameters += [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[
                _type(option), typer.Option(option.flag, metavar=option.metavar, help=option.help)
            ],
            default=False if option.metavar is None else None,
        )
        for option in options
    ]
    call.__doc__ = command.__doc__
    vars(call)["__signature__"] = inspect.Signature(parameters)
    return call


def _type(option: Option) -> Any:
    if option.metavar is None:
        return bool
    return list[str] | None if option.many else str | None
