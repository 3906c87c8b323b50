"""Read many files in a process of its own, so that scans run side by side and can be killed.

`scan` is the parent's side. The child reads one job as JSON from stdin and writes its table to
stdout; it stops by itself when its bounds are reached.
"""

import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread

from guildry.errors import ToolFailed
from guildry.server.demo.functions import BRACES, functions_of
from guildry.server.demo.languages import is_binary, language_of, lines_in
from guildry.server.demo.listing import Reader, Row, folder, many

__all__ = ["Table", "main", "scan"]

Table = dict[str, Any]
"""What a survey tool answers: `rows`, totals by name, and a `note` on what was bounded."""

_SCAN_S: Final = 30.0
_READ_S: Final = 10.0
_MAX_BYTES: Final = 400_000_000
_MAX_SOURCE_BYTES: Final = 1_000_000
_MAX_SAME_BYTES: Final = 20_000_000


async def scan(job: str, root: Path, rows: list[Row], limit: int) -> Table:
    """Run one of `JOBS` over the files of `rows`.

    Raises:
        ToolFailed: the child ended early or took too long.
    """
    asked = {"job": job, "root": str(root), "rows": rows, "limit": limit}
    task = await to_thread.run_sync(json.dumps, asked)  # a long list takes a while
    command = [sys.executable, "-P", "-m", "guildry.server.demo.scan"]
    try:
        with anyio.fail_after(_SCAN_S):
            done = await anyio.run_process(command, input=task.encode(), check=False)
    except TimeoutError as error:
        raise ToolFailed(f"`{job}` was stopped after {_SCAN_S:g} s: list fewer files") from error
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ToolFailed(f"`{job}` ended with code {done.returncode}: {''.join(last)[:200]}")
    table: Table = json.loads(done.stdout)
    return table


def count_languages(root: Path, rows: list[Row], limit: int) -> Table:
    """Count files, lines and bytes by language."""
    reader = Reader(root, max_file_bytes=_MAX_SAME_BYTES, max_bytes=_MAX_BYTES, seconds=_READ_S)
    files, lines, sizes = Counter[str](), Counter[str](), Counter[str]()
    for row, content in reader.contents(rows):
        language = language_of(str(row["path"]), content)
        files[language] += 1
        sizes[language] += len(content)
        lines[language] += 0 if is_binary(content) else lines_in(content)
    found: list[Row] = [
        {"language": name, "files": files[name], "lines": lines[name], "bytes": sizes[name]}
        for name in sorted(files, key=lambda name: (-lines[name], -sizes[name], name))
    ]
    total = {"files": files.total(), "lines": lines.total(), "languages": len(found)}
    return {"rows": found[:limit], **total, "note": reader.note()}


def largest_functions(root: Path, rows: list[Row], limit: int) -> Table:
    """Find the functions of every source file and keep the longest."""
    reader = Reader(root, max_file_bytes=_MAX_SOURCE_BYTES, max_bytes=_MAX_BYTES, seconds=_READ_S)
    found: list[Row] = []
    by_braces, broken = set[str](), 0
    for row, content in reader.contents(rows):
        path = str(row["path"])
        language = language_of(path, content)
        if language != "Python" and language not in BRACES:
            continue
        try:
            functions = functions_of(language, content.decode("utf-8-sig", "replace")) or []
        except SyntaxError:
            broken += 1
            continue
        if functions and language in BRACES:
            by_braces.add(language)
        found.extend(
            {"function": f.name, "path": path, "line": f.line, "lines": f.lines} for f in functions
        )
    found.sort(key=lambda row: (-int(row["lines"]), str(row["path"]), int(row["line"])))
    parts = (
        f"{many(broken, 'Python file')} could not be parsed" if broken else "",
        f"{', '.join(sorted(by_braces))}: told by their braces" if by_braces else "",
        reader.note(),
    )
    note = "; ".join(part for part in parts if part)
    return {"rows": found[:limit], "functions": len(found), "note": note}


def duplicate_files(root: Path, rows: list[Row], limit: int) -> Table:
    """Group the files that hold the same bytes; empty ones are not counted."""
    by_size: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_size[int(row.get("bytes", 0))].append(row)
    candidates = [row for size, same in by_size.items() if size and len(same) > 1 for row in same]
    reader = Reader(root, max_file_bytes=_MAX_SAME_BYTES, max_bytes=_MAX_BYTES, seconds=_READ_S)
    by_digest: defaultdict[bytes, list[tuple[str, int]]] = defaultdict(list)
    for row, content in reader.contents(candidates):
        key = hashlib.sha256(content).digest()
        by_digest[key].append((str(row["path"]), len(content)))
    groups = [sorted(same) for same in by_digest.values() if len(same) > 1]
    found: list[Row] = [
        {"path": same[0][0], "copies": len(same), "wasted_bytes": same[0][1] * (len(same) - 1)}
        for same in groups
    ]
    found.sort(key=lambda row: (-int(row["wasted_bytes"]), str(row["path"])))
    wasted = sum(int(row["wasted_bytes"]) for row in found)
    total = {"groups": len(found), "wasted_bytes": wasted}
    return {"rows": found[:limit], **total, "note": reader.note()}


JOBS: Final[dict[str, Callable[[Path, list[Row], int], Table]]] = {
    job.__name__: job for job in (count_languages, largest_functions, duplicate_files)
}
"""What a child can be asked for, by name."""


def main() -> None:
    """Serve one job."""
    task = json.load(sys.stdin.buffer)
    rows: list[Row] = [row for row in task["rows"] if isinstance(row, dict)]
    table = JOBS[task["job"]](folder(task["root"]), rows, int(task["limit"]))
    sys.stdout.buffer.write(json.dumps(table).encode())


if __name__ == "__main__":
    main()
