"""MiniLM: text as vectors, computed here. Knows its weights' form; looks for them nowhere.

all-MiniLM-L6-v2: what `encoder` computes for the pieces of a text, pooled to one vector.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from guildry.errors import ConfigError
from guildry.tools.finding.encoder import Encoder
from guildry.tools.finding.wordpiece import WordPiece

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.floating[Any]]
    Pool = Callable[[Array, list[int]], Array]

__all__ = ["WEIGHTS_SHA256", "MiniLM", "check_files"]

WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""The digest of `model.safetensors`."""

_VOCABULARY_SHA256: Final = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
_HEADS: Final = 12
_SMALL: Final = 1e-12
_MAX_PIECES: Final = 256
_BATCH_PIECES: Final = 2_048


class MiniLM:
    """Turn texts into unit vectors whose dot product says how near two meanings are.

    Args:
        folder: where `model.safetensors` and `vocab.txt` are.

    Raises:
        ConfigError: the files are missing, or are others than those that are known.
    """

    def __init__(self, folder: Path) -> None:
        weights = _read(folder / "model.safetensors", WEIGHTS_SHA256)
        words = _read(folder / "vocab.txt", _VOCABULARY_SHA256).decode("utf-8").splitlines()
        self._pieces = WordPiece(words, _MAX_PIECES)
        self._encoder = Encoder(_tensors(weights), _HEADS)

    def documents(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one unit vector for each text, as rows."""
        return self._embedded([self._pieces.numbers(text) for text in texts], _mean)

    def queries(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one vector for each text, in which the words that tell something weigh more."""
        return self._embedded([self._pieces.numbers(text) for text in texts], self._told)

    def _embedded(self, numbered: list[list[int]], pool: "Pool") -> "NDArray[np.float32]":
        """Return a vector for each text. Texts of about one length are computed together."""
        order = sorted(range(len(numbered)), key=lambda each: len(numbered[each]))
        vectors = np.empty((len(numbered), self._encoder.width), np.float32)
        batch: list[int] = []
        held = 0
        for each in order:
            if batch and held + len(numbered[each]) > _BATCH_PIECES:
                vectors[batch] = self._pooled([numbered[one] for one in batch], pool)
                batch, held = [], 0
            batch.append(each)
            held += len(numbered[each])
        if batch:
            vectors[batch] = self._pooled([numbered[one] for one in batch], pool)
        return vectors

    def _pooled(self, batch: list[list[int]], pool: "Pool") -> "Array":
        states = self._encoder.states(batch)
        return np.stack([pool(each, numbers) for each, numbers in zip(states, batch, strict=True)])

    def _told(self, states: "Array", numbers: list[int]) -> "Array":
        """Return the mean of all states, and that of the telling ones, half and half."""
        telling = self._pieces.telling(numbers)
        whole = _mean(states, numbers)
        if not any(telling):
            return whole
        half = np.float32(0.5)
        return half * whole + half * _mean(states[telling], numbers)


def _mean(states: "Array", _: list[int]) -> "Array":
    """Return the direction of the mean of some states."""
    total: Array = states.sum(axis=0)
    return total * np.float32(1.0 / max(float(np.sqrt(total @ total)), _SMALL))


def check_files(folder: Path) -> None:
    """Read the files of the model, to be sure of them.

    Raises:
        ConfigError: one is missing, or is another than the one that is known.
    """
    _read(folder / "model.safetensors", WEIGHTS_SHA256)
    _read(folder / "vocab.txt", _VOCABULARY_SHA256)


def _read(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"`{path}` cannot be read ({error.strerror}): run `guildry embed`"
        ) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise ConfigError(
            f"`{path}` holds other weights than those of all-MiniLM-L6-v2: replace it"
        )
    return content


def _tensors(content: bytes) -> "dict[str, Array]":
    """Return the float32 tensors of a safetensors file."""
    size = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + size])
    held: dict[str, Array] = {}
    for name, entry in header.items():
        if entry.get("dtype") != "F32":
            continue
        start, end = entry["data_offsets"]
        flat = np.frombuffer(content, "<f4", (end - start) // 4, 8 + size + start)
        held[name] = flat.reshape(entry["shape"])
    return held
