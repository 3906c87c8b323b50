"""Vectors from an endpoint that speaks OpenAI-style `/v1/embeddings`. Knows HTTP, no tools."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit, urlunsplit

from guildry.errors import ModelRejected, ModelReplyError, ModelUnavailable

if TYPE_CHECKING:
    import aiohttp
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["EndpointEmbedder"]

_PATH: Final = "/embeddings"
_BATCH: Final = 64
_MAX_REPLY_BYTES: Final = 64_000_000


class EndpointEmbedder:
    """Ask an endpoint for vectors.

    Args:
        url: of the server, with or without `/v1` or the whole `/v1/embeddings`.
        model: what the endpoint calls the model.
        api_key: sent as a bearer token; never shown in an error or a log.
        query_prefix: put before what is searched for, as the model was trained.
        timeout_s: seconds that one request may take.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        query_prefix: str = "",
        timeout_s: float = 30.0,
    ) -> None:
        parts = urlsplit(url.strip())
        path = parts.path.rstrip("/").removesuffix(_PATH) or "/v1"
        self._url = urlunsplit((parts.scheme, parts.netloc, path + _PATH, parts.query, ""))
        self._shown = self._url.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1)
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._prefix = query_prefix
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        """The endpoint and its model."""
        return f"{self._model} at {self._shown}"

    async def documents(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one vector for each text that is searched, as rows.

        Raises:
            ModelError: the endpoint gives none.
        """
        return await self._embedded(texts)

    async def queries(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one vector for each text that is searched for, as rows.

        Raises:
            ModelError: the endpoint gives none.
        """
        return await self._embedded([self._prefix + text for text in texts])

    async def _embedded(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        try:
            import numpy as np
        except ImportError as error:
            raise ModelUnavailable(
                "finding tools by meaning needs NumPy: install `guildry[embed]`"
            ) from error
        found: list[list[float]] = []
        for first in range(0, len(texts), _BATCH):
            found += await self._asked(list(texts[first : first + _BATCH]))
        try:
            vectors = np.asarray(found, np.float32)
        except (TypeError, ValueError):
            vectors = np.zeros((0, 0), np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise ModelReplyError(f"`{self._shown}` gave vectors of no use: check the model there")
        lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
        unit: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-9)
        return unit

    async def _asked(self, texts: list[str]) -> list[list[float]]:
        import aiohttp

        body = {"model": self._model, "input": texts, "encoding_format": "float"}
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        try:
            async with self._session.post(self._url, json=body, allow_redirects=False) as reply:
                status = reply.status
                content = await reply.content.read(_MAX_REPLY_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ModelUnavailable(
                f"`{self._shown}` gives no answer ({type(error).__name__}): is it running?"
            ) from error
        if status != 200:
            raise ModelRejected(
                f"`{self._shown}` answers {status}: check its URL, its key and the model", status
            )
        return _read(content, self._shown)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _read(content: bytes, shown: str) -> list[list[float]]:
    """Return the vectors of an answer, in the order of what was asked."""
    try:
        data = cast("list[dict[str, Any]]", json.loads(content)["data"])
        return [each["embedding"] for each in sorted(data, key=lambda one: int(one["index"]))]
    except (ValueError, TypeError, KeyError) as error:
        raise ModelReplyError(f"`{shown}` answers with no list of vectors") from error
