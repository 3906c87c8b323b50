"""What a program cannot do: break out, take too much, or hurt anybody but itself."""

import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st

from guildry.errors import ToolRetry
from guildry.server.app import App, open_app
from guildry.server.config import Settings
from guildry.tools.base import READS, Call, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.code.interpreter import Interpreter
from guildry.tools.code.limits import CodeLimits
from guildry.tools.grants import Grant

pytest.importorskip("pydantic_monty")

ME = Caller(Grant.root("local"), "local")


async def echo(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome((Text(str(arguments["text"])),))


async def nest(arguments: dict[str, Any], call: Call) -> Outcome:
    text = "[" * 900 + "]" * 900
    return Outcome(structured={"deep": json.loads(text)}, has_structured=True)


async def halve(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome((Text("half \ud800 of a pair"),))


def tool(name: str, invoke: Any, **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(
        name=name,
        plug="mine",
        description="",
        input_schema=schema,
        invoke=invoke,
        effects=READS,
    )


TOOLS = (tool("echo", echo, text={}), tool("nest", nest), tool("halve", halve))


@asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncGenerator[App]:
    given: dict[str, Any] = {"code_cpu_s": 1.0, "code_memory_mb": 32, "code_calls": 20, **settings}
    async with open_app(Settings(home=folder / "home", **given)) as app:
        app.catalog.replace("mine", TOOLS)
        with anyio.fail_after(60):
            await app.ready.wait()
            yield app


async def run(app: App, code: str) -> Result:
    return await app.dispatch.call(ME, "run_code", {"code": code})


@pytest.mark.parametrize(
    "code",
    [
        "().__class__.__bases__[0].__subclasses__()",
        "(lambda: 1).__globals__",
        "(lambda: 1).__code__",
        "str.__mro__",
        "getattr(int, '__subclasses__')()",
        "'{0.__class__.__mro__}'.format(1)",
        "f'{().__class__}'",
        "echo.__globals__",
        "echo.__closure__",
        "ref.__self__",
        "__builtins__['open']",
        "__import__('os').system('ls')",
        "import os\nos.system('ls')",
        "import os\nos.listdir('/')",
        "import os\nos.environ['PATH']",
        "import os\nos.getenv('PATH')['x']",
        "import sys\nsys.modules",
        "import subprocess",
        "import socket",
        "import ctypes",
        "import importlib",
        "import pydantic_monty",
        "import guildry",
        "open('/etc/passwd').read()",
        "open('/tmp/x', 'w').write('x')",
        "from pathlib import Path\nPath('/etc/passwd').read_text()",
        "from pathlib import Path\nlist(Path('/').iterdir())",
        "eval(\"__import__('os')\")",
        "exec('import socket')",
        "globals()['echo']",
        "input()",
        "breakpoint()",
        "exit()",
        "raise SystemExit(3)",
        "raise KeyboardInterrupt()",
    ],
)
async def test_there_is_no_way_out_of_a_program(tmp_path: Path, code: str) -> None:
    async with opened(tmp_path) as app:
        result = await run(app, code)
        after = await run(app, "echo('still here')")

    assert result.is_error, result.text
    assert "root:" not in result.text
    assert after.structured["result"] == "still here"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("while True: pass", "it computed for more than 1 s"),
        ("while True:\n  print('x' * 1000)", "it computed for more than 1 s"),
        ("while True:\n  try:\n    1 / 0\n  except BaseException:\n    pass", "more than 1 s"),
        ("x = 'x' * 2_000_000_000", "it needs more than 32 MB"),
        ("x = []\nwhile True: x.append('x' * 100_000)", "it needs more than 32 MB"),
        ("x = 'a'\nwhile True: x += x", "it needs more than 32 MB"),
        ("10 ** 10 ** 10", "it needs more than 32 MB"),
        ("[0] * 10 ** 10", "it needs more than 32 MB"),
        ("def f(n):\n  return f(n + 1)\nf(0)", "use a loop"),
        ("(" * 5_000 + ")" * 5_000, "too deeply nested"),
        ("'x' * 9_000_000", "longer than 8,000,000 bytes"),
        ("echo('x' * 9_000_000)", "longer than 8,000,000 bytes"),
        ("d = []\nfor _ in range(500): d = [d]\nd", "nested more than 100 deep"),
        ("d = []\nfor _ in range(500): d = [d]\necho(d)", "nested more than 100 deep"),
        ("10 ** 5000", "4,000 digits"),
        ("for n in range(100): echo(n)", "has made 20 calls"),
        ("while True:\n  try:\n    echo(1)\n  except BaseException:\n    pass", "20 calls"),
        ("while True:\n  try:\n    nothing()\n  except BaseException:\n    pass", "ask for fewer"),
        ("#" * 200_000, "give at most 100,000"),
    ],
)
async def test_what_takes_too_much_is_stopped_and_told(
    tmp_path: Path, code: str, words: str
) -> None:
    async with opened(tmp_path) as app:
        result = await run(app, code)
        after = await run(app, "echo('still here')")

    assert result.is_error
    assert words in result.text
    assert len(result.text) < 5_000
    assert after.structured["result"] == "still here"


async def test_what_is_printed_is_kept_by_its_two_ends(tmp_path: Path) -> None:
    async with opened(tmp_path, inline_tokens=100_000) as app:
        long = await run(app, "print('first')\nfor n in range(5000): print(n, 'x' * 20)\n'done'")

    printed = long.structured["printed"]
    assert printed.startswith("first\n0 ")
    assert printed.endswith("4999 xxxxxxxxxxxxxxxxxxxx\n")
    assert "characters are left out" in printed
    assert len(printed) < 17_000


async def test_odd_answers_of_tools_do_not_break_a_program(tmp_path: Path) -> None:
    async with opened(tmp_path) as app:
        deep = await run(
            app,
            "x = nest()['deep']\nn = 0\nwhile isinstance(x, list):\n"
            "  n += 1\n  x = x[0] if x else None\n[n, len(x)]",
        )
        half = await run(app, "halve()")

    assert deep.structured["result"][0] > 50
    assert half.structured["result"].startswith("half ")


async def test_a_program_that_is_cancelled_leaves_its_interpreter_to_no_one(tmp_path: Path) -> None:
    began = anyio.Event()

    async def hang(arguments: dict[str, Any], call: Call) -> Outcome:
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with opened(tmp_path) as app:
        app.catalog.replace("more", [tool("hang", hang)])
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(run, app, "hang()")
            await began.wait()
            tasks.cancel_scope.cancel()
        after = await run(app, "1 + 1")

    assert after.structured["result"] == 2


async def test_an_interpreter_that_dies_ends_its_own_program_alone(tmp_path: Path) -> None:
    def kill_interpreters() -> None:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
                if name == "monty" and int(rest.split()[1]) == os.getpid():
                    os.kill(int(stat.parent.name), signal.SIGKILL)

    async def strike(arguments: dict[str, Any], call: Call) -> Outcome:
        await to_thread.run_sync(kill_interpreters)
        return Outcome()

    async with opened(tmp_path) as app:
        app.catalog.replace("more", [tool("strike", strike)])
        result = await run(app, "strike()")
        after = await run(app, "echo('still here')")

    assert result.is_error
    assert "the interpreter ended in the middle of the program" in result.text
    assert after.structured["result"] == "still here"


async def test_more_programs_than_may_run_wait_for_their_turn_and_then_hear_of_it() -> None:
    interpreter = Interpreter(at_once=1, wait_s=0.1)
    try:
        with anyio.fail_after(20):
            async with interpreter.session(CodeLimits()):
                with pytest.raises(ToolRetry, match="1 programs run already"):
                    async with interpreter.session(CodeLimits()):
                        raise AssertionError
            async with interpreter.session(CodeLimits()) as session:
                assert await session.feed_run("1 + 1") == 2
    finally:
        await interpreter.aclose()


async def test_references_that_a_program_is_given_must_be_readable_and_well_named(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as app:
        texts: list[str] = []
        for references in ({"x": "ref:gone"}, {"x": "gone"}, {"print": "ref:x"}, {"a-b": "ref:x"}):
            given = {"code": "1", "references": references}
            result = await app.dispatch.call(ME, "run_code", given)
            assert result.is_error
            texts.append(result.text)

    assert "there is no reference 'ref:gone'" in texts[0]
    assert "such as 'ref:name'" in texts[1]
    assert "use `print_`" in texts[2]
    assert "use `a_b`" in texts[3]


async def test_a_stored_value_that_is_too_large_is_read_in_parts(tmp_path: Path) -> None:
    async with opened(tmp_path) as app:
        await app.objects.put(
            b"line\n" * 1_000_000,
            media_type="text/plain",
            name="long",
            namespace="local",
            owner="local",
        )
        whole = await run(app, "ref('ref:long').value()")
        part = await run(app, "ref('ref:long').value('lines=7-8')")
        odd = await run(app, "ref('ref:long').value(selector=1)")
        more = await run(app, "ref('ref:long').value(1, 2)")

    assert "too many to be read whole" in whole.text
    assert part.structured["result"] == "line\nline"
    assert "such as '#/rows/0', as text" in odd.text
    assert "takes one selector" in more.text


async def test_pauses_are_short_and_both_kinds_of_them_work(tmp_path: Path) -> None:
    code = """
import asyncio, time
time.sleep(0.001)
await asyncio.gather(asyncio.sleep(0.001), asyncio.sleep(0.001))
"rested"
"""
    async with opened(tmp_path) as app:
        assert (await run(app, code)).structured["result"] == "rested"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.text(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


async def test_json_goes_into_a_program_and_out_of_it_unchanged(tmp_path: Path) -> None:
    from guildry.tools.code.values import as_json, external

    @settings(max_examples=200)
    @given(JSON)
    def check(value: Any) -> None:
        sent: Any = external({"value": value}, {})
        assert as_json(sent["return_value"], 1_000_000) == _mended(value)

    check()


def _mended(value: Any) -> Any:
    here: Any = value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_mended(key): _mended(each) for key, each in here.items()}
    return [_mended(each) for each in here] if isinstance(value, list) else value
