"""Progress on its way to a client."""

import math

import anyio
import pytest

from guildry.server.progress import Reporter, reporting

Sent = tuple[float, float | None, str | None]


@pytest.mark.requirement("progress.rises")
async def test_what_does_not_rise_is_moved_up_by_a_hair() -> None:
    sent: list[Sent] = []

    async def send(done: float, total: float | None, message: str | None) -> None:
        sent.append((done, total, message))

    reporter = Reporter(send)
    for done in (0, 1, 1, 0.5, math.nan, math.inf, 2):
        await reporter(done, 2)

    hair = math.nextafter(1, math.inf)
    assert [done for done, _, _ in sent] == [0, 1, hair, math.nextafter(hair, math.inf), 2]


async def test_a_silent_call_is_spoken_for() -> None:
    sent: list[Sent] = []
    heard = anyio.Event()

    async def send(done: float, total: float | None, message: str | None) -> None:
        sent.append((done, total, message))
        if len(sent) == 3:
            heard.set()

    async def work(progress: Reporter) -> str:
        await progress(5, 10, "half")
        await heard.wait()
        return "done"

    with anyio.fail_after(5):
        assert await reporting(send, work, every_s=0.01) == "done"
    assert sent[0] == (5, 10, "half")
    assert [total for _, total, _ in sent] == [10, 10, 10]
    assert sent[0][0] < sent[1][0] < sent[2][0] < 5.001
    assert sent[2][2] is not None and sent[2][2].startswith("running for")


async def test_what_the_work_raises_is_raised_as_it_is() -> None:
    async def send(done: float, total: float | None, message: str | None) -> None:
        return None

    async def work(progress: Reporter) -> None:
        raise LookupError("nothing")

    with pytest.raises(LookupError, match="nothing"):
        await reporting(send, work)
