"""Daemon threads for work that may never return.

Unlike `anyio.to_thread`, a function that hangs keeps neither its caller nor the process alive: the
caller may be cancelled at any time, and the interpreter does not wait for the thread at its end.
"""

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar, cast

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token

__all__ = ["DaemonThreads"]

T = TypeVar("T")


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T | None = None
        self._error: BaseException | None = None
        self.done = anyio.Event()

    def run(self) -> None:
        """Do the work, in a thread. What it raises, `SystemExit` too, is raised by `result`."""
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class _Worker:
    def __init__(self, token: EventLoopToken, finished: "Callable[[_Worker, _Job[object]], None]"):
        self.jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._token = token
        self._finished = finished
        Thread(target=self._run, name="guildry worker", daemon=True).start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.run()
            try:
                from_thread.run_sync(self._finished, self, job, token=self._token)
            except RuntimeError:  # the event loop has ended: nobody waits any more
                return
            del job


class DaemonThreads:
    """Run functions in at most `limit` daemon threads; a hung one counts until it returns."""

    def __init__(self, limit: int) -> None:
        self._limiter = anyio.CapacityLimiter(limit)
        self._idle: list[_Worker] = []
        self._closed = False

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Return what `function` returns. Cancelling leaves its thread behind."""
        job = _Job(partial(copy_context().run, function, *args))
        await self._limiter.acquire_on_behalf_of(job)
        worker = self._idle.pop() if self._idle else _Worker(current_token(), self._finished)
        worker.jobs.put(cast("_Job[object]", job))
        await job.done.wait()
        return job.result()

    def close(self) -> None:
        """End the idle threads; busy ones end with their work."""
        self._closed = True
        while self._idle:
            self._idle.pop().jobs.put(None)

    def _finished(self, worker: _Worker, job: _Job[object]) -> None:
        self._limiter.release_on_behalf_of(job)
        job.done.set()
        if self._closed:
            worker.jobs.put(None)
        else:
            self._idle.append(worker)
