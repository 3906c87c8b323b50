"""The command `guildry`. Starts the server by the shortest way; all else through `commands`."""

import gc
import sys

gc.disable()  # imports make much that lives on and little that dies: collecting there is lost time

from guildry.server.commands.options import SERVE, quick  # noqa: E402 - after the line above

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its code."""
    args = sys.argv[1:]
    given = quick(SERVE, args[1:]) if args[:1] == ["serve"] else None
    if given is not None:
        from guildry.server.commands.serve import serve

        sys.exit(serve(given))
    from guildry.server.commands.app import run

    gc.enable()
    sys.exit(run(args))


if __name__ == "__main__":
    main()
