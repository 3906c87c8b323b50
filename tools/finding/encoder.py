"""A BERT encoder in NumPy: from the numbers of a text's pieces to a state for each. Knows no text.

Texts of a batch are laid end to end, so that nothing is computed for padding.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.floating[Any]]

__all__ = ["Encoder"]

_SMALL: Final = 1e-12


class Encoder:
    """Compute states.

    Args:
        held: the weights by their names, as they are published for BERT.
        heads: of attention, in each layer.
    """

    def __init__(self, held: "Mapping[str, Array]", heads: int) -> None:
        prefix = "embeddings."
        self._words = held[f"{prefix}word_embeddings.weight"]
        self._places = (
            held[f"{prefix}position_embeddings.weight"]
            + held[f"{prefix}token_type_embeddings.weight"][0]
        )
        self._norm = (held[f"{prefix}LayerNorm.weight"], held[f"{prefix}LayerNorm.bias"])
        layers = sum(1 for name in held if name.endswith(".intermediate.dense.weight"))
        self._layers = [_Layer(held, f"encoder.layer.{n}.", heads) for n in range(layers)]
        self.width: Final = int(self._words.shape[1])

    def states(self, batch: Sequence[Sequence[int]]) -> "list[Array]":
        """Return the states of each text's pieces, as rows."""
        ends = [int(end) for end in np.cumsum([len(numbers) for numbers in batch])]
        spans = [(end - len(numbers), end) for end, numbers in zip(ends, batch, strict=True)]
        places = np.concatenate([np.arange(len(numbers)) for numbers in batch])
        x = self._words[np.concatenate(batch)] + self._places[places]
        x = _normed(x, self._norm)
        for layer in self._layers:
            x = layer(x, spans)
        return [x[start:end] for start, end in spans]


class _Layer:
    """One layer of the encoder: attention within each text, then two dense steps."""

    def __init__(self, held: "Mapping[str, Array]", prefix: str, heads: int) -> None:
        self._heads = heads
        kinds = ("query", "key", "value")
        own = f"{prefix}attention.self."
        self._seen = np.concatenate([held[f"{own}{kind}.weight"] for kind in kinds]).T.copy()
        self._seen_bias = np.concatenate([held[f"{own}{kind}.bias"] for kind in kinds])
        self._mixed, self._mixed_bias = _dense(held, f"{prefix}attention.output.dense")
        self._wide, self._wide_bias = _dense(held, f"{prefix}intermediate.dense")
        self._narrow, self._narrow_bias = _dense(held, f"{prefix}output.dense")
        self._norms = [
            (held[f"{prefix}{part}.LayerNorm.weight"], held[f"{prefix}{part}.LayerNorm.bias"])
            for part in ("attention.output", "output")
        ]

    def __call__(self, x: "Array", spans: list[tuple[int, int]]) -> "Array":
        """Return what comes out for `x`, whose texts are the rows of `spans`."""
        seen = x @ self._seen + self._seen_bias
        mixed = np.concatenate([_attended(seen[start:end], self._heads) for start, end in spans])
        x = _normed(x + mixed @ self._mixed + self._mixed_bias, self._norms[0])
        wide = _gelu(x @ self._wide + self._wide_bias)
        return _normed(x + wide @ self._narrow + self._narrow_bias, self._norms[1])


def _attended(seen: "Array", heads: int) -> "Array":
    """Return the values of one text, mixed as its queries and keys have it."""
    length, width = len(seen), seen.shape[1] // 3 // heads
    query, key, value = seen.reshape(length, 3, heads, width).transpose(1, 2, 0, 3)
    scores: Array = query @ key.transpose(0, 2, 1) * np.float32(width**-0.5)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Array = scores @ value
    return mixed.transpose(1, 0, 2).reshape(length, heads * width)


def _normed(x: "Array", norm: "tuple[Array, Array]") -> "Array":
    centred: Array = x - x.mean(axis=-1, keepdims=True)
    variance = np.einsum("ij,ij->i", centred, centred) / x.shape[-1]
    centred *= (1.0 / np.sqrt(variance + _SMALL)).astype(np.float32)[:, None]
    centred *= norm[0]
    centred += norm[1]
    return centred


def _gelu(x: "Array") -> "Array":
    """Return GELU with the error function after Abramowitz and Stegun 7.1.26 (within 2e-7)."""
    size = np.abs(x) * np.float32(2**-0.5)
    t = 1.0 / (1.0 + np.float32(0.3275911) * size)
    sum_ = np.float32(1.061405429) * t - np.float32(1.453152027)
    for term in (1.421413741, -0.284496736, 0.254829592):
        sum_ *= t
        sum_ += np.float32(term)
    size *= size
    np.negative(size, out=size)
    np.exp(size, out=size)
    erf: Array = np.copysign(1.0 - sum_ * t * size, x)
    gelu: Array = np.float32(0.5) * x * (1.0 + erf)
    return gelu


def _dense(held: "Mapping[str, Array]", name: str) -> "tuple[Array, Array]":
    return held[f"{name}.weight"].T.copy(), held[f"{name}.bias"]
