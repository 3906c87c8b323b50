"""Labels: joined wherever values combine, never lost, and checked where values would go out."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.questions import QuestionStore
from guildry.memory.references import parse_handle
from guildry.memory.store import Store
from guildry.tools.asking.board import QuestionBoard
from guildry.tools.asking.flow_guard import FlowGuard
from guildry.tools.asking.questions import Answer
from guildry.tools.base import READS, Call, Effects, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.flow import Flow, FlowPolicy, join, matters, origin
from guildry.tools.grants import Grant
from guildry.tools.passing import open_reference
from guildry.tools.plugs.options import NOTHING_SAID, PlugOptions
from guildry.tools.registry import Catalog

OUT = Effects(writes=False, egress=True, destructive=False)
WRITES = Effects(writes=True, egress=False)
ME = Caller(Grant.root("ann", depth=6), "ann")
LONG = 2_000


def agent(above: Caller, holder: str) -> Caller:
    """Return an agent below another caller, which may call everything."""
    names = ("web", "wiki", "crm", "join", "send", "save", "all", "read")
    return Caller(above.grant.narrow(holder, tools=names), "r1")


@dataclass
class Place:
    """Dispatch over a real store: sources of labelled text, tools that combine, and sinks."""

    dispatch: Dispatch
    catalog: Catalog
    objects: ObjectStore
    journal: Journal
    board: QuestionBoard
    sent: list[str] = field(default_factory=list[str])

    async def call(self, caller: Caller, name: str, **arguments: Any) -> Result:
        return await self.dispatch.call(caller, name, arguments)

    async def source(self, arguments: dict[str, Any], call: Call) -> Outcome:
        mark = f"<{call.tool.plug}>"
        return Outcome((Text(mark + "." * (LONG if arguments.get("long") else 0)),))

    async def join(self, arguments: dict[str, Any], _: Call) -> Outcome:
        return Outcome((Text("".join(arguments["parts"])),))

    async def send(self, arguments: dict[str, Any], _: Call) -> Outcome:
        self.sent.append(arguments.get("text", ""))
        return Outcome((Text("sent"),))

    async def all(self, arguments: dict[str, Any], call: Call) -> Outcome:
        """Make the calls that are named, one after another, and answer all that they answered."""
        told = [(await self.call(call.caller, name)).text for name in arguments["names"]]
        return Outcome((Text(" ".join(told)),))

    async def read(self, arguments: dict[str, Any], call: Call) -> Outcome:
        handle = parse_handle(arguments["reference"])
        assert handle is not None
        reference = await open_reference(self.objects, call.caller, handle)
        return Outcome((Text((await self.objects.read(reference)).decode()[:100]),))

    def tools(self) -> list[Tool]:
        texts = {"parts": {"type": "array", "items": {"type": "string"}}}
        text = {"text": {"type": "string"}}
        reference = {"reference": {"type": "string", "format": "guildry-reference"}}
        return [
            *(_tool(name, self.source, {"long": {}}, plug=name) for name in ("web", "wiki", "crm")),
            _tool("join", self.join, texts),
            _tool("send", self.send, text, OUT),
            _tool("save", self.send, text, WRITES),
            _tool("upload", self.send, reference, OUT),
            _tool("all", self.all, {"names": {"type": "array"}}, plug="guildry"),
            _tool("read", self.read, reference, plug="guildry"),
        ]


def _tool(
    name: str, invoke: Any, properties: dict[str, Any], effects: Effects = READS, plug: str = "mine"
) -> Tool:
    schema = {"type": "object", "properties": properties}
    return Tool(
        name=name, plug=plug, description="", input_schema=schema, invoke=invoke, effects=effects
    )


LABELS = {"web": "untrusted:web", "wiki": "untrusted:wiki", "crm": "private:crm"}


def said_of(plug: str) -> tuple[str, str, PlugOptions]:
    labels = (LABELS[plug],) if plug in LABELS else ()
    return ("python", f"{plug}.py", PlugOptions(labels=labels))


@asynccontextmanager
async def place(
    folder: Path,
    policy: FlowPolicy = "off",
    allow: Mapping[str, Sequence[str]] | None = None,
    inline_tokens: int = 100,
) -> AsyncGenerator[Place]:
    async with Store.open(folder / "guildry.db") as store:
        catalog, journal, flow = Catalog(), Journal(store), Flow(said_of)
        objects = ObjectStore(store, folder / "objects")
        board = QuestionBoard(QuestionStore(store), wait_s=3_600)
        guard = FlowGuard(flow, policy=policy, allow=allow or {}, board=board, journal=journal)
        dispatch = Dispatch(
            catalog,
            objects,
            journal,
            EffectLedger(store),
            inline_tokens=inline_tokens,
            guards=[guard],
            flow=flow,
        )
        here = Place(dispatch, catalog, objects, journal, board)
        for tool in here.tools():
            catalog.replace(tool.plug, [*catalog.current.of(tool.plug), tool])
        with anyio.fail_after(30):
            yield here


async def test_a_value_made_of_labelled_references_has_all_their_labels(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.call(ME, "web", long=True)
        await here.call(ME, "crm", long=True)

        made = await here.call(ME, "join", parts=["ref:web", "and", "ref:crm"])

        assert made.labels == {"untrusted:web", "private:crm", "plug:mine"}
        assert made.references[0].labels == made.labels


async def test_what_a_call_reads_by_itself_and_what_calls_within_it_answer_labels_its_answer(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as here:
        await here.call(ME, "web", long=True)

        read = await here.call(ME, "read", reference="ref:web")
        both = await here.call(ME, "all", names=["crm", "wiki"])

        assert "untrusted:web" in read.labels
        assert {"private:crm", "untrusted:wiki"} <= both.labels


async def test_what_an_agent_was_shown_reaches_its_parent_and_later_children_but_not_others(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as here:
        root = agent(ME, "r1")
        early, reader = agent(root, "r1/1"), agent(root, "r1/2")
        await here.call(early, "join", parts=[])

        await here.call(reader, "web")
        late = agent(root, "r1/3")
        await here.call(late, "join", parts=[])

        seen = here.dispatch.flow.seen
        assert seen("r1/2") == seen("r1") == seen("r1/3") == {"untrusted:web": "web"}
        assert seen("r1/1") == seen("ann") == {}


@pytest.mark.parametrize("sink", ["send", "save", "upload"])
async def test_a_labelled_value_is_refused_at_a_tool_that_writes_or_reaches_out(
    tmp_path: Path, sink: str
) -> None:
    async with place(tmp_path, "refuse") as here:
        await here.call(ME, "web", long=True)

        key = "reference" if sink == "upload" else "text"
        refused = await here.call(ME, sink, **{key: "ref:web"})

        assert refused.is_error
        assert "`untrusted:web` from `ref:web`; asked by ann" in refused.text
        assert here.sent == []
        assert not (await here.call(ME, sink, **{key: "plain"})).is_error


async def test_what_is_private_may_be_written_here_but_not_sent(tmp_path: Path) -> None:
    async with place(tmp_path, "refuse") as here:
        await here.call(ME, "crm", long=True)

        saved = await here.call(ME, "save", text="ref:crm")
        sent = await here.call(ME, "send", text="ref:crm")

        assert (saved.is_error, sent.is_error) == (False, True)


async def test_an_agent_that_read_untrusted_text_may_not_send_what_it_then_writes_itself(
    tmp_path: Path,
) -> None:
    async with place(tmp_path, "refuse") as here:
        worker = agent(agent(ME, "r1"), "r1/1")
        before = await here.call(worker, "send", text="hello")
        await here.call(worker, "web")

        after = await here.call(worker, "send", text="hello")

        assert not before.is_error
        assert "`untrusted:web` from what `web` answered; asked by ann → r1 → r1/1" in after.text


async def test_within_one_call_of_a_client_what_was_read_is_not_sent_on(tmp_path: Path) -> None:
    async with place(tmp_path, "refuse") as here:
        told = await here.call(ME, "all", names=["web", "send"])

        assert "a call within `all`" in told.text
        assert here.sent == []


async def test_what_a_client_read_within_a_call_reaches_the_agents_that_this_call_starts(
    tmp_path: Path,
) -> None:
    async with place(tmp_path, "refuse") as here:
        worker = agent(agent(ME, "r1"), "r1/1")

        async def start(arguments: dict[str, Any], call: Call) -> Outcome:
            await here.call(call.caller, "web")
            return Outcome((Text((await here.call(worker, "send", text="hello")).text),))

        here.catalog.replace("team", [_tool("start", start, {}, plug="team")])

        told = await here.call(ME, "start")

        assert "`untrusted:web` from what `start` answered; asked by ann → r1 → r1/1" in told.text


async def test_agents_that_called_longest_ago_are_dropped_from_the_account() -> None:
    flow = Flow(said_of, most=2)
    tool = _tool("web", None, {}, plug="web")
    for holder in ("r1", "r2", "r1", "r3"):
        with flow.call(agent(ME, holder), tool) as scope:
            scope.invoked = True

    assert [bool(flow.seen(holder)) for holder in ("r1", "r2", "r3")] == [True, False, True]
    join(["nobody is there to hear"])


async def test_allowed_labels_pass_and_others_do_not(tmp_path: Path) -> None:
    async with place(tmp_path, "refuse", {"se*": ["untrusted:web"]}) as here:
        await here.call(ME, "web", long=True)
        await here.call(ME, "wiki", long=True)

        assert not (await here.call(ME, "send", text="ref:web")).is_error
        assert (await here.call(ME, "send", text="ref:wiki")).is_error


async def test_by_default_it_is_entered_once_in_the_journal_and_let_pass(tmp_path: Path) -> None:
    async with place(tmp_path, "warn") as here:
        await here.call(ME, "web", long=True)
        for _ in range(3):
            assert not (await here.call(ME, "send", text="ref:web")).is_error

        entries = await here.journal.read("ann")

        flows = [entry.data for entry in entries if entry.data.get("type") == "flow"]
        labels = {"untrusted:web": "`ref:web`"}
        body = {"tool": "send", "labels": labels, "outcome": "told"}
        assert [each["body"] for each in flows] == [body]


@pytest.mark.parametrize(("action", "is_error"), [("accept", False), ("decline", True)])
async def test_a_person_is_asked_with_the_labels_and_the_chain(
    tmp_path: Path, action: Any, is_error: bool
) -> None:
    results: list[Result] = []
    message = ""
    async with place(tmp_path, "ask") as here, anyio.create_task_group() as tasks:
        await here.call(ME, "web", long=True)

        async def send() -> None:
            results.append(await here.call(ME, "send", text="ref:web"))

        tasks.start_soon(send)
        while not (found := await here.board.open()):
            await checkpoint()
        message = found[0].question.message
        await here.board.answer(found[0].id, Answer(action))

    assert "`untrusted:web`, from `ref:web`\nAsked by: ann" in message
    assert results[0].is_error is is_error


def test_a_plug_says_its_labels_or_its_kind_and_reach_do() -> None:
    reads = _tool("t", None, {}, READS, "p")
    reaches = _tool("t", None, {}, Effects(), "p")

    assert origin(reads, "mcp", "uvx time", NOTHING_SAID) == {"plug:p"}
    assert origin(reaches, "mcp", "uvx time", NOTHING_SAID) == {"untrusted:p"}
    assert origin(reads, "mcp", "https://h/mcp", NOTHING_SAID) == {"untrusted:p"}
    assert origin(reads, "openapi", "api.json", NOTHING_SAID) == {"untrusted:p"}
    assert origin(reaches, "python", "t.py", NOTHING_SAID) == {"plug:p"}
    assert origin(reaches, "python", "t.py", PlugOptions(trust="pinned")) == {"untrusted:p"}
    assert origin(reaches, "mcp", "x", PlugOptions(trust="own")) == {"plug:p"}
    assert origin(reaches, "mcp", "x", PlugOptions(labels=("private:a",))) == {"private:a"}
    assert not matters("plug:p", Effects())
    assert not matters("untrusted:p", READS)


STEP = st.tuples(
    st.sampled_from(["web", "wiki", "crm", "join", "all", "read"]),
    st.integers(0, 3),
    st.lists(st.integers(0, 30), max_size=3),
    st.booleans(),
)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEP, max_size=14))
def test_whatever_is_combined_in_whatever_way_no_label_is_lost(
    steps: list[tuple[str, int, list[int], bool]],
) -> None:
    anyio.run(_combine, steps)


async def _combine(steps: list[tuple[str, int, list[int], bool]]) -> None:
    """Make calls as agents of one run; the marks in each text tell where it really came from."""
    with TemporaryDirectory() as folder:
        async with place(Path(folder)) as here:
            root = agent(ME, "r1")
            callers = [root, *(agent(root, f"r1/{n}") for n in (1, 2))]
            callers.append(agent(callers[1], "r1/3"))
            texts: list[list[str]] = [[] for _ in callers]
            for name, who, parts, long in steps:
                result = await _step(here, callers[who], name, texts[who], parts, long)
                await _check(here, callers[who], result)
                texts[who].append(result.text)
                texts[who] += [reference.short for reference in result.references]


async def _step(
    here: Place, caller: Caller, name: str, texts: list[str], parts: list[int], long: bool
) -> Result:
    chosen = [texts[n % len(texts)] for n in parts if texts]
    if name == "join":
        return await here.call(caller, "join", parts=chosen)
    if name == "all":
        names = [("web", "wiki", "crm")[n % 3] for n in parts]
        return await here.call(caller, "all", names=names)
    references = [text for text in chosen if re.fullmatch(r"ref:\S+", text)]
    if name == "read":
        if not references:
            return Result("")
        return await here.call(caller, "read", reference=references[0])
    return await here.call(caller, name, long=long)


async def _check(here: Place, caller: Caller, result: Result) -> None:
    labels = set(result.labels)
    for reference in result.references:
        text = (await here.objects.read(reference)).decode()
        assert {LABELS[mark] for mark in re.findall(r"<(\w+)>", text)} <= reference.labels
    shown = {LABELS[mark] for mark in re.findall(r"<(\w+)>", result.text)}
    assert shown <= labels
    assert shown <= set(here.dispatch.flow.seen(caller.grant.holder))
