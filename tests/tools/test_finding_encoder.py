"""The small model: pieces of words, and the encoder beside a plain reckoning of the same."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import ModelUnavailable
from guildry.tools.finding.encoder import Encoder
from guildry.tools.finding.own_embedder import OwnEmbedder
from guildry.tools.finding.wordpiece import WordPiece

VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "find", "the", "un", "##aff", "##able", "cafe", "."),
    *("do", "##g", "中", "国", "a", "b"),
]
WIDTH, WIDE, HEADS, LAYERS = 8, 16, 2, 2


def pieces(text: str, most: int = 256) -> list[str]:
    return [VOCABULARY[n] for n in WordPiece(VOCABULARY, most).numbers(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("find the unaffable.", ["find", "the", "un", "##aff", "##able", "."]),
        ("FIND\tthe\n", ["find", "the"]),
        ("Café", ["cafe"]),
        ("unknown", ["[UNK]"]),
        ("x" * 101, ["[UNK]"]),
        ("中国", ["中", "国"]),
        ("a\u200bb", ["[UNK]"]),
        ("", []),
    ],
)
def test_text_is_split_into_the_longest_pieces(text: str, found: list[str]) -> None:
    assert pieces(text) == ["[CLS]", *found, "[SEP]"]


def test_a_text_that_is_too_long_keeps_its_beginning_and_its_end_mark() -> None:
    assert pieces("find the unaffable", 4) == ["[CLS]", "find", "the", "[SEP]"]


def test_words_that_say_nothing_are_told_from_longer_ones_that_begin_alike() -> None:
    piece = WordPiece(VOCABULARY)

    numbers = piece.numbers("do the dog find.")

    assert [
        VOCABULARY[n] for n, told in zip(numbers, piece.telling(numbers), strict=True) if told
    ] == [
        "do",
        "##g",
        "find",
    ]


@given(st.text())
def test_every_text_has_pieces(text: str) -> None:
    numbers = WordPiece(VOCABULARY, 16).numbers(text)

    assert 2 <= len(numbers) <= 16
    assert numbers[0] == VOCABULARY.index("[CLS]")
    assert numbers[-1] == VOCABULARY.index("[SEP]")


def weights() -> dict[str, Any]:
    chance = np.random.default_rng(1)

    def some(*shape: int) -> Any:
        return chance.standard_normal(shape).astype(np.float32) * np.float32(0.5)

    held = {
        "embeddings.word_embeddings.weight": some(20, WIDTH),
        "embeddings.position_embeddings.weight": some(12, WIDTH),
        "embeddings.token_type_embeddings.weight": some(2, WIDTH),
        "embeddings.LayerNorm.weight": some(WIDTH),
        "embeddings.LayerNorm.bias": some(WIDTH),
    }
    for n in range(LAYERS):
        prefix = f"encoder.layer.{n}."
        for name, rows, columns in (
            ("attention.self.query", WIDTH, WIDTH),
            ("attention.self.key", WIDTH, WIDTH),
            ("attention.self.value", WIDTH, WIDTH),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", WIDE, WIDTH),
            ("output.dense", WIDTH, WIDE),
        ):
            held[f"{prefix}{name}.weight"] = some(rows, columns)
            held[f"{prefix}{name}.bias"] = some(rows)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            held[f"{prefix}{name}.weight"] = some(WIDTH)
            held[f"{prefix}{name}.bias"] = some(WIDTH)
    return held


def reckoned(held: dict[str, Any], numbers: list[int]) -> Any:
    """Return the states of one text, in double precision, step by step as BERT has them."""
    w = {name: value.astype(np.float64) for name, value in held.items()}
    erf = np.vectorize(math.erf)

    def norm(x: Any, name: str) -> Any:
        spread = x.var(axis=-1, keepdims=True)
        scaled = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(spread + 1e-12)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    at = np.arange(len(numbers))
    x = w["embeddings.word_embeddings.weight"][numbers]
    x = x + w["embeddings.position_embeddings.weight"][at]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    size = WIDTH // HEADS
    for n in range(LAYERS):
        p = f"encoder.layer.{n}."
        seen = [dense(x, f"{p}attention.self.{kind}") for kind in ("query", "key", "value")]
        parts: list[Any] = []
        for head in range(HEADS):
            q, k, v = (each[:, head * size : (head + 1) * size] for each in seen)
            power = np.exp(q @ k.T / math.sqrt(size))
            parts.append(power / power.sum(axis=-1, keepdims=True) @ v)
        mixed = dense(np.concatenate(parts, axis=-1), f"{p}attention.output.dense")
        x = norm(x + mixed, f"{p}attention.output.LayerNorm")
        wide = dense(x, f"{p}intermediate.dense")
        wide = 0.5 * wide * (1.0 + erf(wide / math.sqrt(2.0)))
        x = norm(x + dense(wide, f"{p}output.dense"), f"{p}output.LayerNorm")
    return x


@given(st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=12), min_size=1, max_size=5))
def test_the_states_of_a_text_are_those_of_bert_whatever_lies_beside_it(
    batch: list[list[int]],
) -> None:
    held = weights()

    states = Encoder(held, HEADS).states(batch)

    for numbers, found in zip(batch, states, strict=True):
        np.testing.assert_allclose(found, reckoned(held, numbers), atol=2e-4)


async def test_missing_weights_are_told_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="guildry embed"):
        await OwnEmbedder(tmp_path).queries(["a"])


async def test_other_weights_than_the_known_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other")

    with pytest.raises(ModelUnavailable, match="other weights"):
        await OwnEmbedder(tmp_path).documents(["a"])


@pytest.mark.skipif("GUILDRY_EMBED_WEIGHTS" not in os.environ, reason="needs the weights")
async def test_the_real_weights_tell_near_meanings_from_far_ones() -> None:
    embedder = OwnEmbedder(Path(os.environ["GUILDRY_EMBED_WEIGHTS"]))

    texts = ["A man is eating food.", "A man eats a piece of bread.", "The market fell today."]
    first, second, third = await embedder.documents(texts)

    assert float(first @ second) == pytest.approx(0.7553, abs=0.15)
    assert float(first @ third) < 0.2
    await embedder.aclose()
