"""More tools than one page of a listing holds."""

from collections.abc import Callable

from guildry.tools.python import reads


def _member(n: int) -> Callable[[], int]:
    def member() -> int:
        return n

    member.__name__ = f"member_{n:03}"
    member.__doc__ = f"Return {n}."
    return reads(member)


globals().update({f"member_{n:03}": _member(n) for n in range(600)})
