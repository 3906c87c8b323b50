"""What turns texts into vectors. Computes none itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Embedder"]


class Embedder(Protocol):
    """Turn texts into vectors whose dot product says how near two meanings are."""

    @property
    def name(self) -> str:
        """What made the vectors: those of two names cannot be compared."""
        ...

    async def documents(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one vector for each text that is searched, as rows.

        Raises:
            ModelError: there is nothing that could make them.
        """
        ...

    async def queries(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one vector for each text that is searched for, as rows.

        Raises:
            ModelError: there is nothing that could make them.
        """
        ...

    async def aclose(self) -> None:
        """Release what it holds."""
        ...
