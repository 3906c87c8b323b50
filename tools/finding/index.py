"""Find tools by what they do: by their words at once, by their meaning as soon as it is known.

Follows the catalog change by change. What is compared with what lies in `shelf`; who may call what
is told by whoever searches.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import anyio
import structlog
from anyio import to_thread

from guildry.errors import ModelError, StoreError
from guildry.tools.finding.choice import Hit, anything_fits, chosen, spread
from guildry.tools.finding.shelf import Shelf, digest_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from guildry.memory.vectors import VectorStore
    from guildry.tools.base import Tool
    from guildry.tools.finding.embedder import Embedder
    from guildry.tools.finding.words import Document
    from guildry.tools.registry import Catalog, Change, Registry

    Vector = NDArray[np.float32]

__all__ = ["Hit", "ToolIndex"]

log = structlog.get_logger()

Allowed = Iterable[str] | Callable[["Tool"], bool] | None

_QUERY_S: Final = 2.0
_AGAIN_S: Final = 60.0
_BATCH: Final = 8
_KEPT_QUERIES: Final = 512
_RECIPE: Final = "name 5, text 25, whole 70"
_VIEWS: Final = (0.05, 0.25, 0.7)
_PRIOR: Final = 0.2


class ToolIndex:
    """Search the tools of a catalog.

    Args:
        catalog: what is plugged.
        embedder: makes vectors; without one tools are found by their words alone.
        vectors: keeps vectors, so that each is made once.
        prior: tells how well a tool has done so far, from 0 to 1; 0.5 says nothing.
    """

    def __init__(
        self,
        catalog: "Catalog",
        *,
        embedder: "Embedder | None" = None,
        vectors: "VectorStore | None" = None,
        prior: "Callable[[Tool], float] | None" = None,
    ) -> None:
        self.prior = prior
        self._catalog = catalog
        self._embedder = embedder
        self._kept = vectors
        self._lock = anyio.Lock()
        self._shelf: Shelf | None = None
        self._stale: dict[str, None] = dict.fromkeys(catalog.current.tools)
        self._unsubscribe = catalog.subscribe(self._changed)
        self._wake = anyio.Event()
        self._asked: OrderedDict[str, Vector] = OrderedDict()
        self._quiet_until = 0.0

    async def search(
        self, queries: Sequence[str], limit: int = 10, allowed: Allowed = None
    ) -> list[Hit]:
        """Return at most `limit` tools that fit any of `queries`, the best of each in turn.

        A query that nothing fits adds nothing.

        Args:
            queries: what is needed, one need each.
            limit: at most this many tools.
            allowed: names to choose from, or what tells whether a tool may be chosen.
        """
        vectors = await self._of_queries(queries)
        async with self._lock:
            registry = self._catalog.current
            stale, self._stale = self._stale, {}
            found = await to_thread.run_sync(
                self._searched, registry, stale, tuple(queries), limit, allowed, vectors
            )
        return chosen(found, limit)

    def _searched(
        self,
        registry: "Registry",
        stale: Iterable[str],
        queries: tuple[str, ...],
        limit: int,
        allowed: Allowed,
        vectors: "Sequence[Vector | None]",
    ) -> list[list[Hit]]:
        shelf = self._updated(registry, stale)
        tools = registry.tools
        may = _permission(allowed)

        def accepts(name: str) -> bool:
            return name in tools and may(tools[name])

        found: list[list[Hit]] = []
        for query, vector in zip(queries, vectors, strict=True):
            fits = shelf.search(query, accepts, vector)
            if not anything_fits([fit for _, fit in fits[:limit]]):
                continue
            hits = [self._hit(tools[name], fit.score) for name, fit in fits]
            hits.sort(key=lambda hit: -hit.score)
            found.append(spread(hits, limit))
        return found

    def _hit(self, tool: "Tool", score: float) -> Hit:
        known = 0.5 if self.prior is None else self.prior(tool)
        return Hit(tool, round(score * (1.0 + _PRIOR * (known - 0.5)), 4))

    # Keeping in step -----------------------------------------------------------------------------

    def _changed(self, change: "Change") -> None:
        self._stale.update(dict.fromkeys((*change.removed, *change.added, *change.changed)))
        self._wake.set()

    def _updated(self, registry: "Registry", stale: Iterable[str]) -> Shelf:
        if self._shelf is None:
            self._shelf = Shelf()
        self._shelf.update(stale, registry.tools)
        return self._shelf

    # Meaning -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make the vectors that are missing, now and after every change, until cancelled."""
        if self._embedder is None:
            return
        while True:
            self._wake = anyio.Event()
            try:
                await self.learn()
            except (ModelError, StoreError) as error:
                log.warning("tools_not_embedded", error=str(error))
                self._quiet_until = anyio.current_time() + _AGAIN_S
                await anyio.sleep(_AGAIN_S)
                continue
            await self._wake.wait()

    async def learn(self) -> int:
        """Make the vectors that are missing; return how many tools got one.

        Raises:
            ModelError: the embedder gives none.
            StoreError: the database refuses.
        """
        if self._embedder is None:
            return 0
        model = f"{self._embedder.name}; {_RECIPE}"
        missing = await self._missing()
        digests = {row: digest_of(known) for row, known in missing.items()}
        await self._remember(model, digests)
        new = [row for row in missing if row in digests]
        for first in range(0, len(new), _BATCH):
            some = {row: missing[row] for row in new[first : first + _BATCH]}
            vectors = await self._made(list(some.values()))
            await self._taken(dict(zip(some, vectors, strict=True)))
            if self._kept is not None:
                made = {digests[r]: v.tobytes() for r, v in zip(some, vectors, strict=True)}
                await self._kept.put(model, made)
        if missing:
            log.info("tools_embedded", tools=len(missing), new=len(new))
        return len(missing)

    async def _missing(self) -> "dict[int, Document]":
        async with self._lock:
            registry = self._catalog.current
            stale, self._stale = self._stale, {}
            shelf = await to_thread.run_sync(self._updated, registry, stale)
            return shelf.without_meaning()

    async def _remember(self, model: str, digests: dict[int, str]) -> None:
        """Take up the vectors that are kept, and leave those that are not in `digests`."""
        if self._kept is None or not digests:
            return
        kept = await self._kept.get(model, list(dict.fromkeys(digests.values())))
        if not kept:
            return
        await self._kept.used(model, list(kept))
        known = {row: kept[digest] for row, digest in digests.items() if digest in kept}
        for row in known:
            del digests[row]
        await self._taken(await to_thread.run_sync(_read, known))

    async def _made(self, documents: "list[Document]") -> "list[Vector]":
        embedder = self._embedder
        assert embedder is not None
        texts = [view for known in documents for view in known.views()]
        vectors = await embedder.documents(texts)
        return await to_thread.run_sync(_joined, vectors)

    async def _taken(self, vectors: "dict[int, Vector]") -> None:
        async with self._lock:
            shelf = self._shelf
            if shelf is not None:
                await to_thread.run_sync(shelf.learn, vectors)

    async def _of_queries(self, queries: Sequence[str]) -> "list[Vector | None]":
        """Return the vectors of queries; None where there is none in time."""
        embedder, nothing = self._embedder, [None] * len(queries)
        shelf = self._shelf
        if embedder is None or shelf is None or not shelf.with_meaning:
            return list(nothing)
        new = [query for query in dict.fromkeys(queries) if query not in self._asked]
        if new and anyio.current_time() < self._quiet_until:
            return list(nothing)
        try:
            with anyio.fail_after(_QUERY_S):
                vectors = await embedder.queries(new) if new else ()
        except (ModelError, TimeoutError) as error:
            log.warning("query_not_embedded", error=str(error) or "too slow")
            self._quiet_until = anyio.current_time() + _AGAIN_S
            return list(nothing)
        self._asked.update(zip(new, vectors, strict=True))
        found: list[Vector | None] = [self._asked[query] for query in queries]
        while len(self._asked) > _KEPT_QUERIES:
            self._asked.popitem(last=False)
        return found

    async def aclose(self) -> None:
        """Release the index."""
        self._unsubscribe()
        async with self._lock:
            shelf, self._shelf = self._shelf, None
            if shelf is not None:
                await to_thread.run_sync(shelf.close)
        if self._embedder is not None:
            await self._embedder.aclose()


def _permission(allowed: Allowed) -> "Callable[[Tool], bool]":
    if allowed is None:
        return lambda tool: True
    if callable(allowed):
        return allowed
    names = frozenset(allowed)
    return lambda tool: tool.name in names


def _joined(vectors: "NDArray[np.float32]") -> "list[Vector]":
    """Return one vector for each tool from those of its views."""
    import numpy as np

    weights = np.asarray(_VIEWS, np.float32)
    views = vectors.reshape(-1, len(_VIEWS), vectors.shape[1])
    return list(np.einsum("ijk,j->ik", views, weights))


def _read(kept: "dict[int, bytes]") -> "dict[int, Vector]":
    import numpy as np

    return {row: np.frombuffer(vector, "<f4") for row, vector in kept.items()}
