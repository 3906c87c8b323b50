"""Short names: unique in a namespace, readable, and given without looking at the database."""

import re
from typing import Final

__all__ = ["Names", "clean"]

_OTHER: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_NAME_LENGTH: Final = 64


def clean(name: str) -> str:
    """Return `name` as a reference can have it."""
    return _OTHER.sub("_", name[: 2 * _NAME_LENGTH])[:_NAME_LENGTH].strip("_.-") or "object"


class Names:
    """The short names of one namespace."""

    def __init__(self, taken: dict[str, str]) -> None:
        self.ids = taken
        self.names = {id: name for name, id in taken.items()}
        self._next: dict[str, int] = {}

    def take(self, wanted: str, id: str) -> str:
        """Give `id` the name that was wanted, or the first free one after it."""
        name = wanted
        if name in self.ids:
            number = self._next.get(wanted, 2)
            while (name := f"{wanted}_{number}") in self.ids:
                number += 1
            self._next[wanted] = number + 1
        self.ids[name] = id
        self.names[id] = name
        return name

    def drop(self, id: str) -> None:
        """Free the name of `id`."""
        self.ids.pop(self.names.pop(id, ""), None)
