"""Tools that ask a folder's git history."""

from collections import Counter
from datetime import datetime

from guildry.errors import ToolFailed, ToolRetry
from guildry.server.demo.history import commits_in, read_changes
from guildry.server.demo.listing import Row, folder, git_fault, git_output, git_root
from guildry.server.demo.scan import Table
from guildry.server.demo.tables import bounded_limit
from guildry.tools.python import reads

__all__ = ["authors_of", "changed_files", "history_span", "repository_facts"]

_CHANGES_S = 12.0
_MAX_COMMITS = 10_000


@reads
def repository_facts(path: str) -> Table:
    """Tell whether a folder is kept in git, where its repository begins and its number of commits.

    Args:
        path: the folder.
    """
    root = git_root(folder(path))
    if root is None:
        note = git_fault(folder(path))
        return {"git": False, "root": "", "branch": "", "commits": 0, "note": note}
    counted = git_output(root, "rev-list", "--count", "HEAD")
    branch = git_output(root, "symbolic-ref", "--short", "--quiet", "HEAD") or b""
    return {
        "git": True,
        "root": str(root),
        "branch": branch.decode("utf-8", "replace").strip(),
        "commits": int(counted) if counted else 0,
        "note": "",
    }


@reads(timeout_s=40.0)
async def changed_files(path: str, max_commits: int = 2_000, limit: int = 1_000) -> Table:
    """Count for each file of a folder how many of the newest commits changed it, merges apart.

    Args:
        path: the folder, kept in git.
        max_commits: how many commits to read.
        limit: how many files to return, most often changed first.
    """
    root = folder(path)
    if git_root(root) is None:
        raise ToolFailed(f"{path!r} is not kept in git: it has no changes to count")
    if not 1 <= max_commits <= _MAX_COMMITS:
        raise ToolRetry(f"`max_commits` is {max_commits}: pass 1 to {_MAX_COMMITS}")
    changes = await read_changes(root, max_commits, _CHANGES_S)
    rows = changes.rows()
    note = f"read {changes.commits:,} commits in {_CHANGES_S:g} s" if changes.is_cut else ""
    if changes.commits == max_commits:
        note = f"the newest {max_commits:,} commits that are not merges"
    total = {"commits": changes.commits, "files": len(rows), "note": note}
    return {**total, "rows": rows[: bounded_limit(limit)]}


@reads
def authors_of(log: str, limit: int = 8) -> Table:
    """Count the commits of each author in a log that `git_log` returned, most first.

    Args:
        log: the answer of `git_log`.
        limit: how many authors to return.
    """
    counts = Counter[str]()
    newest: dict[str, datetime] = {}
    for commit in commits_in(log):
        counts[commit.author] += 1
        newest[commit.author] = max(commit.at, newest.get(commit.author, commit.at))
    rows: list[Row] = [
        {"author": name, "commits": counts[name], "last": newest[name].date().isoformat()}
        for name in sorted(counts, key=lambda name: (-counts[name], name))
    ]
    total = {"authors": len(rows), "commits": counts.total()}
    return {**total, "rows": rows[: bounded_limit(limit)]}


@reads
def history_span(log: str, now: str) -> Table:
    """Tell when the commits of a log began and ended, and how many days ago the last one was.

    Args:
        log: the answer of `git_log`.
        now: the present time as ISO 8601 with its offset, such as the `datetime` that
            `get_current_time` returned.
    """
    try:
        present = datetime.fromisoformat(now)
    except ValueError as error:
        raise ToolRetry(
            f"`now` is {now[:80]!r}: pass a time such as 2026-01-31T12:00:00+00:00"
        ) from error
    if present.tzinfo is None:
        raise ToolRetry(f"`now` is {now!r}: add its offset, such as +00:00")
    times = [commit.at for commit in commits_in(log)]
    if not times:
        raise ToolFailed("there are no commits in the log")
    first, last = min(times), max(times)
    return {
        "first": first.date().isoformat(),
        "last": last.date().isoformat(),
        "days": (last - first).days,
        "days_since_last": (present - last).days,
    }
