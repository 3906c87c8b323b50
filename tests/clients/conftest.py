"""Each way by which a client gets to the server, as one connection for all tests of a module."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from connected import Connected
from node_client import node_client
from python_client import python_client
from serving import Place, served

HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class Way:
    """How a client gets to the server."""

    client: str
    transport: str
    mode: str

    @property
    def is_modern(self) -> bool:
        """Tell whether it ends up in the modern era."""
        return self.mode != "legacy"

    def __str__(self) -> str:
        return f"{self.client}-{self.transport}-{self.mode}"


_CLIENTS: Final = (
    ("sdk", ("legacy",)),
    ("client", ("legacy", "auto", "2026-07-28")),
    ("python", ("legacy", "auto")),
)
WAYS: Final = [
    Way(client, transport, mode)
    for client, modes in _CLIENTS
    for transport in ("stdio", "http")
    for mode in modes
]

Reach = Callable[[str, Place], AbstractAsyncContextManager[Connected]]


@asynccontextmanager
async def connecting(way: Way, place: Place) -> AsyncGenerator[tuple[Connected, Place]]:
    """Serve a place, and connect to it."""
    if way.transport == "http":
        async with served(place) as there, _client(way, there) as client:
            yield client, there
    else:
        async with _client(way, place) as client:
            yield client, place


def _client(way: Way, place: Place) -> AbstractAsyncContextManager[Connected]:
    if way.client == "python":
        return python_client(place, way.mode)
    return node_client(way.client, place, way.mode)


@pytest.fixture(scope="module", params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


@pytest.fixture(scope="module")
async def reached(
    way: Way, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[tuple[Connected, Place]]:
    """A client that is connected to the workshop, and where the server is."""
    home = tmp_path_factory.mktemp("home")
    async with connecting(way, Place(home, HERE)) as both:
        yield both


@pytest.fixture(scope="module")
def connected(reached: tuple[Connected, Place]) -> Connected:
    return reached[0]


@pytest.fixture(scope="module")
def place(reached: tuple[Connected, Place]) -> Place:
    return reached[1]


@pytest.fixture(scope="session")
def reach() -> Reach:
    """Serve a place of one's own, and connect to it in one of the ways."""

    @asynccontextmanager
    async def make(name: str, place: Place) -> AsyncGenerator[Connected]:
        way = next(way for way in WAYS if str(way) == name)
        async with connecting(way, place) as (client, _):
            yield client

    return make
