"""`tools --usage`, and macros from the command line, as processes."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio

TOOLS = '''
def find(topic: str) -> dict[str, str]:
    """Find an article."""
    return {"article": f"article of {topic}"}


def show(article: str) -> str:
    """Show an article."""
    return article.upper()


def fail() -> str:
    """Fail."""
    raise ValueError("no")
'''


async def guildry(folder: Path, *args: str) -> tuple[int, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GUILDRY_")}
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [sys.executable, "-m", "guildry.server", *args],
            cwd=folder,
            env=kept | {"GUILDRY_HOME": str(folder / "home")},
            check=False,
        )
    return done.returncode, done.stdout.decode() or done.stderr.decode()


async def told(folder: Path, *args: str) -> Any:
    code, text = await guildry(folder, *args, "--json")
    assert code == 0, text
    return json.loads(text)


async def test_what_tools_have_done_is_shown_and_what_is_done_again_and_again_becomes_a_tool(
    tmp_path: Path,
) -> None:
    (tmp_path / "articles.py").write_text(TOOLS)
    (tmp_path / "guildry.toml").write_text('[plugs]\narticles = "articles.py"\n')

    none = await guildry(tmp_path, "tools", "--usage")
    for topic in ("tea", "bread"):
        found = await told(tmp_path, "call", "find", f"topic={topic}")
        await told(tmp_path, "call", "show", f"article={found['answer']['article']}")
    await guildry(tmp_path, "call", "fail")
    table = await guildry(tmp_path, "tools", "--usage")
    figures = await told(tmp_path, "tools", "--usage")
    suggested = await told(tmp_path, "call", "suggest_macros", "at_least=2")
    plugged = await told(tmp_path, "plug", "macro:find_then_show")
    done = await told(tmp_path, "call", "find_then_show", "topic=soup")
    unplugged = await guildry(tmp_path, "unplug", plugged["plug"])

    assert none == (0, "No tool was called in the last 90 days.\n")
    lines = [line.split() for line in table[1].splitlines()]
    assert lines[0][:5] == ["tool", "plug", "calls", "errors", "success"]
    assert ["find", "articles", "2", "0"] in [line[:4] for line in lines]
    assert ["fail", "articles", "1", "1"] in [line[:4] for line in lines]
    assert ["(all)", "articles", "5", "1"] in [line[:4] for line in lines]
    assert {each["name"]: each["calls"] for each in figures["tools"]} == {
        "find": 2,
        "show": 2,
        "fail": 1,
    }
    assert [each["source"] for each in suggested["answer"]["macros"]] == ["macro:find_then_show"]
    assert plugged["tools"] == ["find_then_show"]
    assert done["answer"] == "ARTICLE OF SOUP"
    assert unplugged[0] == 0
