"""The program that runs the tests of a proposed tool, in a process of its own.

Takes a JSON object with `name`, `source` and `tests` on stdin, and writes one with what came of
each test on stdout. Imports nothing of Guildry: it runs in a sandbox that does not show it.
"""

import asyncio  # noqa: TID251 - there is nothing else in the sandbox
import inspect
import json
import linecache
import os
import sys
import traceback
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["main"]

_MOST_CHARACTERS = 500


def _module(name: str, text: str, given: dict[str, Any]) -> ModuleType:
    """Run a text as a module of that name, which others can import."""
    file = f"{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = ModuleType(name)
    module.__dict__.update(given)
    sys.modules[name] = module
    exec(compile(text, file, "exec"), module.__dict__)
    return module


def _told(error: BaseException, file: str) -> dict[str, Any]:
    """Say where in `file` an error came up, and what it is."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    where = frames[-1] if frames else None
    if where is None and isinstance(error, SyntaxError):
        return {"line": error.lineno, "code": (error.text or "").strip(), "error": said}
    return {
        "line": where.lineno if where else None,
        "code": (where.line or "").strip()[:_MOST_CHARACTERS] if where else "",
        "error": said[:_MOST_CHARACTERS],
    }


def _run(test: FunctionType, file: str) -> dict[str, Any]:
    try:
        returned = test()
        if inspect.iscoroutine(returned):
            asyncio.run(returned)
    except BaseException as error:
        return {"test": test.__name__, "ok": False, **_told(error, file)}
    return {"test": test.__name__, "ok": True}


def _tried(name: str, source: str, tests: str) -> dict[str, Any]:
    try:
        tool = _module(name, source, {})
    except BaseException as error:
        return {"fault": {"in": "source", **_told(error, f"{name}.py")}}
    try:
        suite = _module(f"test_{name}", tests, {name: getattr(tool, name)})
    except BaseException as error:
        return {"fault": {"in": "tests", **_told(error, f"test_{name}.py")}}
    found = [
        each
        for key, each in vars(suite).items()
        if key.startswith("test_") and isinstance(each, FunctionType)
    ]
    return {"tests": [_run(each, f"test_{name}.py") for each in found]}


def main() -> None:
    """Run the tests. What the tool and they print goes to stderr."""
    answer = os.dup(1)
    os.dup2(2, 1)
    given = json.loads(sys.stdin.buffer.read())
    found = _tried(given["name"], given["source"], given["tests"])
    with os.fdopen(answer, "wb") as out:
        out.write(json.dumps(found).encode())
    sys.stderr.flush()
    os._exit(0)  # threads that it has left behind are no reason to wait


if __name__ == "__main__":
    main()
