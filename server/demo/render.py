"""The report and the figures of a survey as a terminal of 80 columns shows them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from guildry.server.demo.report import Report
from guildry.server.demo.shown import list_of, object_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = ["human_bytes", "shown_figures", "shown_report"]

_PATH_WIDTH: Final = 46
_BAR_WIDTH: Final = 16
_WIDTH: Final = 78


def human_bytes(size: int) -> str:
    """Return a size as a person reads it."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{int(value):,} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


@dataclass(frozen=True, slots=True)
class _Column:
    """One column: its head, where its value is, and how that is shown."""

    head: str
    key: str
    shown: Callable[[Any], str]
    right: bool = True
    width: int | None = None


def _counted(value: Any, one: str, many: str) -> str:
    return f"{_number('?' if value is None else value)} {one if value == 1 else many}"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else _words(value)


def _size(value: Any) -> str:
    return human_bytes(value) if isinstance(value, int) else _words(value)


def _words(value: Any) -> str:
    """Return foreign text on one line, without anything that a terminal would obey."""
    return "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in str(value)
    )


def _path(value: Any) -> str:
    """Return a path, its beginning cut where it is long: the end tells more."""
    text = _words(value)
    return text if len(text) <= _PATH_WIDTH else "…" + text[1 - _PATH_WIDTH :]


_FILE: Final = _Column("file", "path", _path, right=False)
_LAYOUT: Final = (
    ("largest_files", "Largest files", (_FILE, _Column("size", "bytes", _size))),
    (
        "folders",
        "Folders",
        (
            _Column("folder", "folder", _path, right=False),
            _Column("files", "files", _number),
            _Column("size", "bytes", _size),
        ),
    ),
    (
        "functions",
        "Largest functions",
        (
            _Column("function", "function", _words, right=False, width=26),
            _Column("file", "path", _path, right=False),
            _Column("line", "line", _number),
            _Column("lines", "lines", _number),
        ),
    ),
    (
        "changes",
        "Most changed files",
        (
            _FILE,
            _Column("commits", "commits", _number),
            _Column("added", "added", _number),
            _Column("deleted", "deleted", _number),
        ),
    ),
    (
        "authors",
        "Authors",
        (
            _Column("author", "author", _words, right=False, width=40),
            _Column("commits", "commits", _number),
            _Column("last", "last", _words),
        ),
    ),
    (
        "duplicates",
        "Files with the same bytes",
        (_FILE, _Column("copies", "copies", _number), _Column("wasted", "wasted_bytes", _size)),
    ),
)


def shown_report(report: Report) -> "list[RenderableType]":
    """Return the parts of a report, top to bottom."""
    from rich.text import Text

    shown: list[RenderableType] = [_headline(report), Text()]
    tables = {name: (title, columns) for name, title, columns in _LAYOUT}
    for name in ("languages", *tables):
        part = object_of(report.get(name))
        rows = [object_of(row) for row in list_of(part.get("rows"))]
        if not rows:
            continue
        if name == "languages":
            shown.append(_languages(rows))
        else:
            shown.append(_table(*tables[name], rows))
        note = _words(part.get("note") or "")
        shown.append(Text(f"  {note}\n" if note else "", style="dim italic"))
    return shown


def _headline(report: Report) -> "Text":
    from rich.text import Text

    def part(name: str) -> dict[str, Any]:
        return object_of(report.get(name))

    totals, history, authors, span = map(part, ("totals", "history", "authors", "span"))
    lines = [
        f"{_counted(totals.get('files'), 'file', 'files')}, {_size(totals.get('bytes', '?'))}"
        f" (median {_size(totals.get('median_bytes', '?'))}),"
        f" {_counted(part('languages').get('lines'), 'line', 'lines')} of text"
    ]
    lines.append(_history(history, authors, span))
    functions = _counted(part("functions").get("functions"), "function", "functions")
    same = part("duplicates")
    groups = _counted(same.get("groups"), "group", "groups")
    wasted = _size(same.get("wasted_bytes", "?"))
    lines.append(f"{functions} found; {groups} of equal files ({wasted} more than once)")
    if totals.get("note"):
        lines.append(_words(totals["note"]))
    return Text("\n".join(lines))


def _history(history: dict[str, Any], authors: dict[str, Any], span: dict[str, Any]) -> str:
    if not history.get("git"):
        note = _words(history.get("note") or "")
        return note or "Not kept in git: no changes and no authors to tell of"
    commits, read = history.get("commits"), authors.get("commits")
    if not commits:
        return "Kept in git, without a commit yet"
    newest = "" if read == commits else f"; the newest {_number(read)}"
    return (
        f"{_counted(commits, 'commit', 'commits')}{newest} by"
        f" {_counted(authors.get('authors'), 'author', 'authors')}"
        f"\nFrom {_words(span.get('first', '?'))} to {_words(span.get('last', '?'))},"
        f" the last one {_counted(span.get('days_since_last'), 'day', 'days')} ago"
    )


def _table(title: str, columns: Sequence[_Column], rows: Sequence[dict[str, Any]]) -> "Table":
    from rich.text import Text

    table = _frame(title)
    for column in columns:
        table.add_column(
            column.head,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=column.width,
        )
    for row in rows:
        table.add_row(*(Text(column.shown(row.get(column.key, ""))) for column in columns))
    return table


def _languages(rows: Sequence[dict[str, Any]]) -> "Table":
    from rich.text import Text

    table = _frame("Languages")
    table.add_column("language", no_wrap=True)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("lines", justify="right", no_wrap=True)
    table.add_column("share of lines", no_wrap=True)
    counts = [row["lines"] if isinstance(row.get("lines"), int) else 0 for row in rows]
    total = sum(counts) or 1
    for row, lines in zip(rows, counts, strict=True):
        bar = "█" * round(lines / total * _BAR_WIDTH)
        share = Text.assemble((f"{bar:<{_BAR_WIDTH}}", "cyan"), f" {lines / total:5.1%}")
        name = Text(_words(row.get("language", "?")))
        table.add_row(name, Text(_number(row.get("files"))), Text(_number(lines)), share)
    return table


def _frame(title: str) -> "Table":
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        width=_WIDTH,
        header_style="dim",
    )


def shown_figures(figures: dict[str, Any]) -> "RenderableType":
    """Return the three figures, and how far the report was traced to its tools."""
    from rich.panel import Panel
    from rich.table import Table

    sent, by_value = figures["tokens_sent"], figures["tokens_by_value"]
    wall, one_by_one = figures["wall_s"], figures["one_by_one_s"]
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    requests = f"in {figures['requests']} requests"
    table.add_row("Tokens that the models were sent", f"{sent:,}", requests)
    by = f"{by_value / sent:,.1f} times as many" if sent else ""
    table.add_row("… had results been passed by value", f"{by_value:,}", by)
    table.add_row("Wall time of the run", f"{wall:.2f} s", f"{figures['agents']} agents")
    table.add_row(
        "… its calls one after another", f"{one_by_one:.2f} s", f"{one_by_one / wall:.1f} times"
    )
    table.add_row(
        f"    {figures['calls']} tool calls, made again", f"{figures['tool_calls_again_s']:.2f} s"
    )
    table.add_row(f"    {figures['requests']} model replies", f"{figures['replies_s']:.2f} s")
    return Panel(table, title="Three figures", title_align="left", width=_WIDTH, padding=(0, 1))
