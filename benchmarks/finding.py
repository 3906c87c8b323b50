"""Finding tools: recall on two sets, by words alone and by meaning too; speed; and tokens.

The sets are not part of the project: `GUILDRY_TOOL_SETS` names the folder that they are in.
`GUILDRY_EMBED_WEIGHTS` names that of the small model's weights where `guildry embed` did not put
them into the home; without them the figures by meaning are left out.
"""

import gc
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Outcome, Section, Target
from benchmarks.toolsets import SETS
from guildry.server.builtin.finding import fitted
from guildry.server.config import Settings
from guildry.server.embedding import model_folder
from guildry.tools.base import Call, Tool
from guildry.tools.base import Outcome as Answer
from guildry.tools.finding.index import ToolIndex
from guildry.tools.finding.own_embedder import OwnEmbedder
from guildry.tools.registry import Catalog
from guildry.tools.results import BYTES_PER_TOKEN

WORDS = {"bfcl": (69.0, 81.0, 74.0), "metatool": (69.0, 76.0, 63.0)}
MEANING = {"bfcl": (74.0, 86.0, 80.0), "metatool": (80.0, 87.0, 75.0)}
NAMES = ("R@5", "R@10", "N@10", "C@10")
PARTS = 5
MANY = 10_000
SHOWN_AT = 527
INLINE_TOKENS = 1_000

Figures = list[float]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Need:
    """A query and the ids of the tools that it is for."""

    query: str
    relevant: frozenset[str]


async def answer(_: dict[str, Any], __: Call) -> Answer:
    """Serve a tool that nobody calls."""
    return Answer()


def rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of the sets."""
    lines = (SETS / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


def tools_of(name: str) -> dict[str, Tool]:
    """Return the tools of a set by id, those of one name in plugs of their own."""
    found: dict[str, Tool] = {}
    seen: dict[str, int] = {}
    for row in rows(f"{name}_tools.jsonl"):
        nth = seen[row["name"]] = seen.get(row["name"], 0) + 1
        found[row["id"]] = Tool(
            name=row["name"],
            source_name=row["name"],
            plug=name if nth == 1 else f"{name}{nth}",
            description=row["description"],
            input_schema=row.get("input_schema") or {"type": "object"},
            invoke=answer,
        )
    return found


def needs_of(name: str) -> list[Need]:
    """Return the queries of a set."""
    return [Need(row["query"], frozenset(row["relevant"])) for row in rows(f"{name}_queries.jsonl")]


def plugged(tools: Sequence[Tool]) -> Catalog:
    """Return a catalog with tools, plug by plug."""
    catalog = Catalog()
    plugs: dict[str, list[Tool]] = {}
    for tool in tools:
        plugs.setdefault(tool.plug, []).append(tool)
    for plug, held in plugs.items():
        catalog.replace(plug, held)
    return catalog


def scored(found: Sequence[str], relevant: frozenset[str]) -> Figures:
    """Return recall at 5 and 10, NDCG at 10, and whether every relevant tool is in the top 10."""
    hits = [each in relevant for each in found[:10]]
    gain = sum(1 / math.log2(place + 2) for place, hit in enumerate(hits) if hit)
    ideal = sum(1 / math.log2(place + 2) for place in range(min(10, len(relevant))))
    whole = len(relevant)
    return [sum(hits[:5]) / whole, sum(hits) / whole, gain / ideal, float(sum(hits) == whole)]


def mean(figures: Sequence[Figures]) -> Figures:
    """Return the mean of each figure, in percent."""
    return [100 * statistics.fmean(column) for column in zip(*figures, strict=True)]


async def judged(index: ToolIndex, ids: dict[tuple[str, str], str], needs: list[Need]) -> Any:
    """Return the figures of each query, and the mean tokens of what a model is shown."""
    figures: list[Figures] = []
    shown: list[int] = []
    for need in needs:
        hits = await index.search([need.query], 10)
        found = [ids[hit.tool.plug, hit.tool.source_name] for hit in hits]
        figures.append(scored(found, need.relevant))
        if len(shown) < 200:
            shown.append(tokens(fitted(hits, INLINE_TOKENS)))
    return figures, statistics.fmean(shown)


def tokens(value: Any) -> int:
    """Return about how many tokens a model pays for a value."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":"))) // BYTES_PER_TOKEN


def weights() -> Path | None:
    """Return where the small model's weights are, or None."""
    given = os.environ.get("GUILDRY_EMBED_WEIGHTS")
    return Path(given) if given else model_folder(Settings().home)


async def recall(outcome: Outcome, name: str, folder: Path | None, quick: bool) -> None:
    """Measure one set by words, and by meaning where there are weights."""
    tools, needs = tools_of(name), needs_of(name)
    if quick:
        needs = random.Random(1).sample(needs, 200)
    header = ["by", "queries", *NAMES, f"{PARTS} parts: R@5", "R@10", "N@10", "tokens shown"]
    section = Section(f"{name}: {len(tools):,} tools", header)
    ids = {(tool.plug, tool.source_name): id for id, tool in tools.items()}
    for way, limits in (("words", WORDS), ("meaning", MEANING)):
        by_meaning = way == "meaning"
        if by_meaning and folder is None:
            section.rows.append(["meaning: no weights", *["-"] * (len(header) - 1)])
            outcome.targets += [
                Target(f"{name}, by meaning: {what}", limit, None, at_least=True)
                for what, limit in zip(NAMES, limits[name], strict=False)
            ]
            continue
        catalog = plugged(list(tools.values()))
        embedder = OwnEmbedder(folder) if by_meaning and folder is not None else None
        index = ToolIndex(catalog, embedder=embedder)
        await index.learn()
        figures, shown = await judged(index, ids, needs)
        await index.aclose()
        whole = mean(figures)
        parts = [mean(figures[part::PARTS]) for part in range(PARTS)]
        spans = [f"{min(column):.1f}..{max(column):.1f}" for column in zip(*parts, strict=True)]
        section.rows.append(
            [way, f"{len(needs):,}", *(f"{each:.1f}" for each in whole), *spans[:3], f"{shown:.0f}"]
        )
        outcome.targets += [
            Target(f"{name}, by {way}: {what}", limit, each, at_least=True)
            for what, limit, each in zip(NAMES, limits[name], whole, strict=False)
        ]
    outcome.sections.append(section)


def shuffled(tool: Tool, number: int, chance: random.Random) -> Tool:
    """Return a further tool: the words of another in another order."""
    words = tool.description.split()
    chance.shuffle(words)
    return Tool(
        name=f"t{number}",
        source_name=f"{tool.source_name}#{number}",
        plug=f"p{number % 70}",
        description=" ".join(words),
        input_schema=tool.input_schema,
        invoke=answer,
    )


class Ocean:
    """Ten thousand tools, searched with one processor's time taken."""

    def __init__(self, quick: bool) -> None:
        sets = [tools_of(name) for name in WORDS]
        self.real = [tool for held in sets for tool in held.values()]
        chance = random.Random(1)
        more = [
            shuffled(self.real[n % len(self.real)], n, chance) for n in range(MANY - len(self.real))
        ]
        self.catalog = plugged([*self.real, *more])
        self.extra = [shuffled(tool, MANY + n, chance) for n, tool in enumerate(self.real[:20])]
        needs = [need for name in WORDS for need in needs_of(name)]
        self.queries = [need.query for need in chance.sample(needs, 100 if quick else 400)]


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Return the milliseconds of processor time that some work takes."""
    began = time.process_time()
    await work()
    return (time.process_time() - began) * 1e3


async def speed(outcome: Outcome, folder: Path | None, quick: bool) -> None:
    """Measure searches among ten thousand tools, and twenty more of them."""
    ocean = Ocean(quick)
    section = Section(f"{len(ocean.catalog.current):,} tools", ["what", "p50 ms", "p95 ms"])
    index = ToolIndex(ocean.catalog)
    built = await timed(lambda: index.search(["warm up"]))
    took = [await timed(lambda q=query: index.search([q])) for query in ocean.queries]  # type: ignore[misc]
    row(section, "search by words", took)
    outcome.targets.append(Target("search by words, p50", 5.0, statistics.median(took), "ms"))
    adds: list[float] = []
    for n in range(10):
        ocean.catalog.replace("more", [*ocean.extra] if n % 2 == 0 else [])
        adds.append(await timed(lambda: index.search(["zzz"])))
    row(section, "take up 20 new tools", adds[::2])
    row(section, "leave 20 tools out", adds[1::2])
    outcome.targets.append(Target("20 tools added, p50", 10.0, statistics.median(adds[::2]), "ms"))
    section.notes.append(f"The first search, which takes up all tools: {built:,.0f} ms.")
    await index.aclose()
    if folder is not None:
        by_meaning = ToolIndex(ocean.catalog, embedder=Spread(folder, ocean.real))
        await by_meaning.learn()
        took = [await timed(lambda q=query: by_meaning.search([q])) for query in ocean.queries]  # type: ignore[misc]
        row(section, "search by words and meaning", took)
        target = Target("search by words and meaning, p50", 25.0, statistics.median(took), "ms")
        outcome.targets.append(target)
        await by_meaning.aclose()
    outcome.sections.append(section)


class Spread(OwnEmbedder):
    """Real vectors for queries; for the many made-up tools, vectors of the same shape."""

    def __init__(self, folder: Path, real: Sequence[Tool]) -> None:
        super().__init__(folder)
        self._few = [tool.description for tool in real[:64]]

    async def documents(self, texts: Sequence[str]) -> Any:
        """Return vectors near those of a few real texts."""
        import numpy as np

        if not hasattr(self, "_near"):
            self._near = await super().documents(self._few)
        chance = np.random.default_rng(len(texts[0]))
        chosen = self._near[chance.integers(0, len(self._near), len(texts))]
        noise = chance.standard_normal(chosen.shape).astype(np.float32)
        return chosen + np.float32(0.05) * noise


def row(section: Section, what: str, took: list[float]) -> None:
    """Enter how long something took."""
    ordered = sorted(took)
    late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    section.rows.append([what, f"{statistics.median(took):.2f}", f"{late:.2f}"])


async def cost(outcome: Outcome) -> None:
    """Compare what is shown of ten hits with sending every definition."""
    chance = random.Random(1)
    tools = chance.sample(list(tools_of("bfcl").values()), SHOWN_AT)
    index = ToolIndex(plugged(tools))
    whole = sum(
        tokens({"name": t.name, "description": t.description, "input_schema": dict(t.input_schema)})
        for t in tools
    )
    needs = chance.sample([*needs_of("bfcl"), *needs_of("metatool")], 300)
    shown = [tokens(fitted(await index.search([n.query], 10), INLINE_TOKENS)) for n in needs]
    await index.aclose()
    mean_shown = statistics.fmean(shown)
    section = Section(f"Tokens at {SHOWN_AT} tools", ["what", "tokens"])
    section.rows += [
        ["every definition", f"{whole:,}"],
        ["ten hits, mean", f"{mean_shown:,.0f}"],
        ["ten hits, most", f"{max(shown):,}"],
    ]
    outcome.sections.append(section)
    what = "definitions of all tools against those shown"
    outcome.targets.append(Target(what, 50.0, whole / mean_shown, "x", at_least=True))


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure everything; only Guildry takes part."""
    if not (SETS / "bfcl_tools.jsonl").exists():
        raise RuntimeError(f"the sets are not in {SETS}: name their folder in GUILDRY_TOOL_SETS")
    folder = weights()
    outcome = Outcome("finding", "Finding tools by what they do", quick=quick)
    for name in WORDS:
        print(f"finding: {name}", file=sys.stderr, flush=True)
        await recall(outcome, name, folder, quick)
        gc.collect()
    print("finding: speed and tokens", file=sys.stderr, flush=True)
    await speed(outcome, folder, quick)
    await cost(outcome)
    outcome.method = [
        "recall@k: share of the relevant tools in the top k; NDCG@10 with binary gain; C@10: share"
        " of queries with every relevant tool in the top 10. All queries of both sets, one query"
        " a search, through `ToolIndex.search`, with its cap per plug and its abstention."
        f" {PARTS} parts: the lowest and highest figure of {PARTS} disjoint parts of the queries.",
        "BFCL repeats names; tools of one name stand in plugs of their own, as with real servers.",
        "Times are of the processor (all threads), one search at a time, in this process."
        f" {MANY:,} tools: the real ones, the rest with the words of descriptions shuffled; by"
        " meaning: real vectors of queries, vectors of tools scattered about real ones.",
        f"Tokens: bytes / {BYTES_PER_TOKEN}. Shown: the whole answer of `find_tools` for ten hits.",
    ]
    return outcome
