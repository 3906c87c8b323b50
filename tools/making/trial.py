"""Trials: the tests of a proposed tool, run in a sandbox against it and against stubs of it.

Tests that a stub passes as well say nothing of the tool.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import anyio
from anyio import to_thread

from guildry.errors import SandboxError, ToolFailed
from guildry.tools.making.draft import Draft
from guildry.tools.plugs.options import SandboxOptions, SandboxPolicy
from guildry.tools.process import inherited_environment
from guildry.tools.sandbox.running import Ended, run_confined
from guildry.tools.schema import as_list

__all__ = ["Trial", "Verdict"]

_RUNNER: Final = Path(__file__).with_name("runner.py")
_SANDBOX: Final = SandboxOptions(memory_mb=512, cpu_s=30, processes=32, file_mb=64)
_OUTPUT_BYTES: Final = 1024 * 1024
_SHOWN: Final = 5
_WORDS: Final = 400
_AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a trial.

    Args:
        fault: why it did not pass, and what to change; empty if it did.
        tests: how many tests there are.
        stubs: what the stubs return that the tests told from the tool.
        is_confined: whether a sandbox was around it, or only limits.
        notes: what whoever decides should know besides.
    """

    fault: str
    tests: int = 0
    stubs: tuple[str, ...] = ()
    is_confined: bool = False
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the verdict by name."""
        return {
            "passed": not self.fault,
            **({"fault": self.fault} if self.fault else {}),
            "tests": self.tests,
            "told_from_stubs": list(self.stubs),
            "sandbox": self.is_confined,
            **({"notes": list(self.notes)} if self.notes else {}),
        }


class Trial:
    """Try drafts, at most two at a time.

    Args:
        policy: whether they are confined, and whether they may run where they cannot be.
        limit_s: how long the tests may take, each time they are run.
    """

    def __init__(self, policy: SandboxPolicy, *, limit_s: float = 20.0) -> None:
        self._policy: SandboxPolicy = policy
        self._limit_s = limit_s
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def run(self, draft: Draft) -> Verdict:
        """Run the tests against the tool, then against each stub.

        Raises:
            ToolFailed: they cannot be run here; says why.
        """
        async with self._limiter:
            ended, found = await self._ran(draft, draft.source)
            tests = _tests(found)
            fault = self._fault(ended, found, tests)
            confined, notes = ended.is_confined, ended.notes
            if fault:
                return Verdict(fault, len(tests), (), confined, notes)
            told: list[str] = []
            for stub in draft.stubs():
                _, found = await self._ran(draft, stub.source)
                against = _tests(found)
                if against and all(each["ok"] for each in against):
                    fault = (
                        f"the tests also pass if `{draft.name}` does nothing but"
                        f" `return {stub.returns}`: assert what it returns for more inputs"
                    )
                    return Verdict(fault, len(tests), tuple(told), confined, notes)
                told.append(stub.returns)
            return Verdict("", len(tests), tuple(told), confined, notes)

    async def _ran(self, draft: Draft, source: str) -> tuple[Ended, dict[str, Any]]:
        """Run the tests against a source; return how that ended and what was answered."""
        given = {"name": draft.name, "source": source, "tests": draft.tests}
        folder = Path(await to_thread.run_sync(partial(tempfile.mkdtemp, prefix="guildry-")))
        try:
            ended = await run_confined(
                [sys.executable, "-I", "-B", str(_RUNNER)],
                _SANDBOX,
                cwd=folder,
                env={**inherited_environment(), "HOME": str(folder)},
                stdin=json.dumps(given).encode(),
                wall_s=self._limit_s,
                output_bytes=_OUTPUT_BYTES,
                policy=self._policy,
            )
        except (OSError, SandboxError) as error:
            raise ToolFailed(f"the tests cannot be run here: {error}") from error
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
        try:
            found = json.loads(ended.stdout)
        except ValueError:
            found = None
        return ended, cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def _fault(self, ended: Ended, found: Mapping[str, Any], tests: list[dict[str, Any]]) -> str:
        if ended.cut == "time":
            return f"the tests took over {self._limit_s:g} s: test with smaller inputs"
        if ended.cut == "output":
            return "the tests printed over 1 MB: print less"
        if "fault" in found:
            fault = found["fault"]
            return f"`{fault['in']}` cannot be imported: {_where(fault)}"
        if not tests:
            words = ended.stderr.decode(errors="replace").strip()[-_WORDS:]
            return f"the tests ended with {ended.code} before they were done: {words or 'no word'}"
        failed = [each for each in tests if not each["ok"]]
        lines = [f"- `{each['test']}` {_where(each)}" for each in failed[:_SHOWN]]
        more = len(failed) - _SHOWN
        lines += [f"- and {more} more"] if more > 0 else []
        return "\n".join([f"{len(failed)} of {len(tests)} tests failed:", *lines]) if failed else ""


def _tests(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what came of each test, as far as it is what the runner writes."""
    tests = as_list(found.get("tests"))
    return [each for each in tests if isinstance(each, dict) and {"test", "ok"} <= each.keys()]


def _where(found: Mapping[str, Any]) -> str:
    line, code = found.get("line"), found.get("code")
    where = f"line {line}: " if line else ""
    return f"{where}{found.get('error', '')}{f' in `{code}`' if code else ''}"
