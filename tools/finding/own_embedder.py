"""Vectors computed in this process, in a thread, by the small model whose weights lie here."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import CapacityLimiter, to_thread

from guildry.errors import ConfigError, ModelUnavailable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from guildry.tools.finding.minilm import MiniLM

__all__ = ["OwnEmbedder"]


class OwnEmbedder:
    """Compute vectors with MiniLM. Its weights are read at the first use.

    Args:
        folder: where `model.safetensors` and `vocab.txt` are.
    """

    name = "all-MiniLM-L6-v2"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model: MiniLM | None = None
        self._one = CapacityLimiter(1)

    async def documents(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one vector for each text that is searched, as rows.

        Raises:
            ModelUnavailable: NumPy or the weights are missing.
        """
        return await to_thread.run_sync(lambda: self._loaded().documents(texts), limiter=self._one)

    async def queries(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one vector for each text that is searched for, as rows.

        Raises:
            ModelUnavailable: NumPy or the weights are missing.
        """
        return await to_thread.run_sync(lambda: self._loaded().queries(texts), limiter=self._one)

    def _loaded(self) -> "MiniLM":
        if self._model is None:
            try:
                from guildry.tools.finding.minilm import MiniLM
            except ImportError as error:
                raise ModelUnavailable(
                    "finding tools by meaning needs NumPy: install `guildry[embed]`"
                ) from error
            try:
                self._model = MiniLM(self._folder)
            except ConfigError as error:
                raise ModelUnavailable(str(error)) from error
        return self._model

    async def aclose(self) -> None:
        """Release the weights."""
        self._model = None
