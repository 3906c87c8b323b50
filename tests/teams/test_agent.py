import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.errors import ModelRejected, ModelReplyError, ModelUnavailable, StoreFull
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.memory.store import Store
from guildry.teams.agent import AgentSpec, Desk, work
from guildry.teams.budget import Budget
from guildry.teams.calls import in_groups
from guildry.teams.messages import Report, Task
from guildry.teams.model import Completion, Message, Request, ToolCall, Usage
from guildry.teams.scripted import Program, Reply, ScriptedModel, call
from guildry.tools.base import READS, Call, Effects, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Grant, Limits
from guildry.tools.registry import Catalog

WRITES = Effects(writes=True, egress=False, destructive=False, idempotent=False)
ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
FREE = Limits()


@dataclass
class Rig:
    """One agent's whole surroundings, all of them real."""

    store: Store
    objects: ObjectStore
    journal: Journal
    catalog: Catalog
    dispatch: Dispatch

    def desk(self, *tools: str, limits: Limits = FREE, kept: int = 0) -> Desk:
        root = Grant.root("local", limits=limits)
        grant = root.narrow("r1/1", tools=tools)
        budget = Budget(limits, hand_back_tokens=kept)
        caller = Caller(grant=grant, run="r1", meter=budget)
        return Desk(
            caller=caller,
            budget=budget,
            dispatch=self.dispatch,
            catalog=self.catalog,
            objects=self.objects,
            journal=self.journal,
            agent="r1/1",
        )

    def plug(self, plug: str, *tools: Tool) -> None:
        self.catalog.replace(plug, tools)

    async def put(self, text: str, name: str, owner: str = "r1/1") -> Reference:
        return await self.objects.put(
            text.encode(), media_type="text/plain", name=name, namespace="r1", owner=owner
        )

    async def events(self, kind: str) -> list[dict[str, Any]]:
        return [entry.data for entry in await self.journal.read("r1") if entry.kind == kind]


@asynccontextmanager
async def surroundings(folder: Path) -> AsyncGenerator[Rig, None]:
    with anyio.fail_after(20):
        async with Store.open(None) as store:
            objects = ObjectStore(store, folder)
            journal = Journal(store)
            catalog = Catalog()
            dispatch = Dispatch(catalog, objects, journal, EffectLedger(store))
            yield Rig(store, objects, journal, catalog, dispatch)


def tool(
    name: str,
    answer: Callable[[dict[str, Any]], Any] = lambda _: "ok",
    effects: Effects = READS,
    schema: dict[str, Any] = ANY_OBJECT,
) -> Tool:
    async def invoke(given: dict[str, Any], _: Call) -> Outcome:
        said = answer(given)
        return Outcome((Text(str(await said if hasattr(said, "__await__") else said)),))

    return Tool(
        name=name,
        plug="",
        description=f"Do {name}.",
        input_schema=schema,
        invoke=invoke,
        effects=effects,
    )


def spec(program: Program, *tools: str, **more: Any) -> AgentSpec:
    return AgentSpec(
        name="worker", instructions="You work.", model=ScriptedModel(program), tools=tools, **more
    )


def requests(of: AgentSpec) -> list[Request]:
    assert isinstance(of.model, ScriptedModel)
    return of.model.requests


def roles(request: Request) -> str:
    return "".join(message.role[0] for message in request.messages)


def last(request: Request) -> str:
    return request.messages[-1].content


async def do(agent: AgentSpec, desk: Desk, task: Task | str = "Do it.") -> Report:
    return await work(agent, Task(task) if isinstance(task, str) else task, desk)


async def test_an_agent_calls_a_tool_reads_the_result_and_reports(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("math", tool("add", lambda given: given["a"] + given["b"]))
        agent = spec([call("add", a=1, b=2), "It is 3."], "add")
        desk = rig.desk("add")

        report = await do(agent, desk)

        assert (report.status, report.summary, report.reason) == ("done", "It is 3.", "finished")
        assert report.spent.calls == 1
        assert report.spent.agents == 1
        assert report.spent.usage == desk.budget.usage
        first, second = requests(agent)
        assert roles(first) == "su"
        assert roles(second) == "suat"
        assert last(second) == "3"
        assert second.messages[2].calls == (ToolCall("call_1", "add", '{"a": 1, "b": 2}'),)
        assert second.messages[3].call_id == "call_1"
        model_events = await rig.events("model")
        assert [event["turn"] for event in model_events] == [1, 2]
        assert model_events[0]["calls"] == [["call_1", "add", '{"a": 1, "b": 2}']]
        assert [event["tool"] for event in await rig.events("tool")] == ["add"]


async def test_the_prefix_is_the_same_in_every_turn_and_for_every_sibling(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("b"), tool("a"), tool("c"))
        program: list[Reply] = [call("a"), call("b"), "Done."]
        one, two = spec(program, "c", "a", "b"), spec(program, "b", "c", "a")

        await do(one, rig.desk("a", "b", "c"), "First.")
        rig.plug("later", tool("aa"))
        await do(two, rig.desk("a", "b", "c"), "Second.")

        turns = requests(one)
        for before, after in zip(turns, turns[1:], strict=False):
            assert after.messages[: len(before.messages)] == before.messages
            assert after.tools is not None and after.tools == before.tools
        sibling = requests(two)[0]
        assert sibling.tools == turns[0].tools
        assert [shown.name for shown in sibling.tools] == ["a", "b", "c"]
        assert all(a is b for a, b in zip(sibling.tools, turns[0].tools, strict=True))
        assert sibling.messages[0] == turns[0].messages[0]
        assert sibling.messages[1].content == "Second."


async def test_only_tools_that_are_granted_are_shown(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("mine"), tool("foreign"))
        rig.plug("own", replace(tool("manage"), scope="admin"))
        agent = spec(["Done."], "mine", "foreign", "manage", "missing")

        await do(agent, rig.desk("mine", "manage", "missing"))

        assert [shown.name for shown in requests(agent)[0].tools] == ["mine"]


async def test_an_agents_own_overhead_is_below_120_tokens(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        reference = await rig.put("x" * 5_000, "table", owner="local")
        schema = {"type": "object", "properties": {"table": {"type": "string"}}}
        rig.plug("p", tool("count", schema=schema))
        desk = rig.desk("count")
        task = Task("Count the rows.", references=(reference,))
        agent = spec(["Done."], "count")

        await do(agent, desk, task)

        (request,) = requests(agent)
        own = len("You work.") + len("Count the rows.")
        own += sum(shown.size for shown in request.tools)
        own += len(reference.short) + len(reference.sketch)
        assert (sum(message.size for message in request.messages) - own + len("user")) / 4 < 120
        assert request.messages[1].content == (
            f"Count the rows.\n\nReferences:\n- ref:table {reference.sketch}"
        )


async def test_an_agent_without_tools_is_told_nothing_of_references(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        agent = spec(["Done."])

        await do(agent, rig.desk())

        assert requests(agent)[0].messages == (
            Message("system", "You work."),
            Message("user", "Do it."),
        )


async def test_a_reference_of_another_namespace_is_shown_by_its_uri(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        foreign = await rig.objects.put(
            b"x", media_type="text/plain", name="log", namespace="elsewhere", owner="local"
        )
        agent = spec(["Done."])

        await do(agent, rig.desk(), Task("Read.", references=(foreign,)))

        assert f"- {foreign.uri} " in last(requests(agent)[0])


async def test_independent_calls_of_one_turn_run_side_by_side(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        inside: list[str] = []
        all_in = anyio.Event()

        async def meet(given: dict[str, Any]) -> str:
            inside.append(given["n"])
            if len(inside) == 3:
                all_in.set()
            await all_in.wait()
            return f"result {given['n']}"

        rig.plug("p", tool("meet", meet))
        agent = spec([[call("meet", n=n) for n in "abc"], "Done."], "meet")

        await do(agent, rig.desk("meet"))

        results = requests(agent)[1].messages[3:]
        assert [(m.call_id, m.content) for m in results] == [
            ("call_1", "result a"),
            ("call_2", "result b"),
            ("call_3", "result c"),
        ]


async def test_calls_that_conflict_keep_their_order_while_others_run(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        order: list[str] = []
        read = anyio.Event()

        async def write(given: dict[str, Any]) -> str:
            order.append(f"begin {given['n']}")
            await read.wait()
            order.append(f"end {given['n']}")
            return "written"

        async def look(_: dict[str, Any]) -> str:
            order.append("look elsewhere")
            read.set()
            return "seen"

        rig.plug(
            "files", tool("write", write, WRITES), tool("stat", lambda _: order.append("stat"))
        )
        rig.plug("net", tool("look", look))
        asked = [call("write", n=1), call("stat"), call("write", n=2), call("look")]
        agent = spec([asked, "Done."], "write", "stat", "look")

        await do(agent, rig.desk("write", "stat", "look"))

        assert order == ["begin 1", "look elsewhere", "end 1", "stat", "begin 2", "end 2"]


async def test_writes_to_one_plug_run_one_after_another(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        order: list[str] = []

        async def write(given: dict[str, Any]) -> str:
            order.append(f"begin {given['n']}")
            await anyio.lowlevel.checkpoint()
            order.append(f"end {given['n']}")
            return "written"

        rig.plug("files", tool("write", write, WRITES))
        agent = spec([[call("write", n=1), call("write", n=2)], "Done."], "write")

        await do(agent, rig.desk("write"))

        assert order == ["begin 1", "end 1", "begin 2", "end 2"]


async def test_a_tool_that_is_unplugged_while_it_runs_still_answers(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:

        def leave(_: dict[str, Any]) -> str:
            rig.catalog.withdraw("p")
            return "the last answer"

        rig.plug("p", tool("leave", leave))
        agent = spec([call("leave"), call("leave"), "Done."], "leave")

        report = await do(agent, rig.desk("leave"))

        told = [m.content for m in requests(agent)[2].messages if m.role == "tool"]
        assert told[0] == "the last answer"
        assert "there is no tool 'leave'" in told[1]
        assert report.status == "done"


def test_reads_of_one_plug_do_not_conflict() -> None:
    reads = {name: replace(tool(name), plug="p") for name in ("a", "b")}
    writes = {"w": replace(tool("w", effects=WRITES), plug="q")}

    assert in_groups(["a", "w", "b", "w", "gone"], {**reads, **writes}) == [[4], [0], [2], [1, 3]]


async def test_arguments_that_are_not_json_are_told_and_nothing_is_run(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        ran: list[Any] = []
        rig.plug("p", tool("act", ran.append))
        broken = [
            Completion(calls=(ToolCall("x", "act", text),))
            for text in ('{"a": ', "[1]", '{"a": Infinity}')
        ]
        agent = spec([*broken, call("act", a=1), "Done."], "act")

        report = await do(agent, rig.desk("act"))

        told = [last(request) for request in requests(agent)[1:4]]
        assert "not valid JSON" in told[0] and repr('{"a": ') in told[0]
        assert "not a JSON object" in told[1]
        assert "Infinity is not a JSON value" in told[2]
        assert all("Nothing was run. Call again with one JSON object" in text for text in told)
        assert ran == [{"a": 1}]
        assert report.status == "done"
        resent = [c.arguments for m in requests(agent)[4].messages for c in m.calls]
        assert [json.loads(text) for text in resent] == [{}, {}, {}, {"a": 1}]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("", {}),
        ("  ", {}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"text": "two\nlines\tand a tab"}', {"text": "two\nlines\tand a tab"}),
    ],
    ids=["nothing", "blank", "encoded twice", "raw control characters"],
)
async def test_what_engines_garble_but_leaves_no_doubt_is_understood(
    tmp_path: Path, written: str, meant: dict[str, Any]
) -> None:
    async with surroundings(tmp_path) as rig:
        ran: list[Any] = []
        rig.plug("p", tool("act", ran.append))
        agent = spec([Completion(calls=(ToolCall("x", "act", written),)), "Done."], "act")

        await do(agent, rig.desk("act"))

        assert ran == [meant]


async def test_an_unknown_tool_is_told_with_the_tools_there_are(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("count"), tool("secret"))
        agent = spec([[call("cuont"), call("secret")], "Done."], "count")

        report = await do(agent, rig.desk("count"))

        first, second = requests(agent)[1].messages[3:]
        assert "'cuont'" in first.content and "Your tools: `count`" in first.content
        assert "'secret'" in second.content
        assert report.status == "done"


async def test_calls_with_one_id_get_ids_of_their_own(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("echo", lambda given: given["n"]))
        turn = [Completion(calls=tuple(replace(call("echo", n=n), id="0") for n in (a, a + 1)))
                for a in (1, 3)]  # fmt: skip
        agent = spec([*turn, "Done."], "echo")

        await do(agent, rig.desk("echo"))

        results = [m for m in requests(agent)[2].messages if m.role == "tool"]
        assert [(m.call_id, m.content) for m in results] == [
            ("0", "1"),
            ("0-2", "2"),
            ("0-3", "3"),
            ("0-4", "4"),
        ]


async def test_a_failing_tool_is_told_and_does_not_end_the_work(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("divide", lambda _: 1 / 0))
        agent = spec([call("divide"), "It cannot be divided."], "divide")

        report = await do(agent, rig.desk("divide"))

        assert "ZeroDivisionError" in last(requests(agent)[1])
        assert report.status == "done"


@pytest.mark.parametrize(
    ("reply", "cure"),
    [
        ("", "Your reply was empty"),
        (Completion(finish="length"), "cut off at its limit"),
        ('<tool_call>{"name": "count"}</tool_call>', "wrote a tool call as text"),
        ('{"name": "count", "arguments": {}}', "wrote a tool call as text"),
        ('```json\n[{"name": "count", "parameters": {}}]\n```', "wrote a tool call as text"),
    ],
)
async def test_a_reply_that_says_nothing_usable_is_nudged(
    tmp_path: Path, reply: Reply, cure: str
) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("count"))
        agent = spec([reply, "Done."], "count")

        report = await do(agent, rig.desk("count"))

        assert cure in last(requests(agent)[1])
        assert report.summary == "Done."
        (nudge,) = await rig.events("message")
        assert nudge["type"] == "nudge"


@pytest.mark.parametrize(
    "reply", ["", call("nothing"), Completion(calls=(ToolCall("x", "count", "{"),))]
)
async def test_nudges_are_bounded_and_the_report_gives_the_reason(
    tmp_path: Path, reply: Reply
) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("count"))
        agent = spec([reply] * 10, "count")

        report = await do(agent, rig.desk("count"))

        assert report.status == "failed"
        assert report.reason.startswith("no usable reply after 3 nudges: ")
        assert len(requests(agent)) == 4


async def test_work_done_before_a_model_breaks_is_handed_back(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("dump", lambda _: "line\n" * 3_000))
        agent = spec([call("dump"), "", "", "", ""], "dump")

        report = await do(agent, rig.desk("dump"))

        assert report.status == "partial"
        assert "no usable reply" in report.reason
        assert [reference.name for reference in report.references] == ["dump"]


async def test_json_that_is_an_answer_is_no_call(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("count"))
        for answer in ('{"name": "Bob", "arguments": 3}', "[]", "{oops", "`count` did it", "[1]"):
            report = await do(spec([answer], "count"), rig.desk("count"))

            assert (report.status, report.summary) == ("done", answer)


def raises(*errors: Exception) -> Callable[[Request], Reply]:
    left = list(errors)

    def program(_: Request) -> Reply:
        if left:
            raise left.pop(0)
        return "Done."

    return program


@pytest.mark.parametrize(
    "error", [ModelUnavailable("`http://h` is gone"), ModelRejected("bad key", 401)]
)
async def test_a_model_that_cannot_be_reached_gives_a_failed_report(
    tmp_path: Path, error: Exception
) -> None:
    async with surroundings(tmp_path) as rig:
        agent = spec(raises(error, error))
        desk = rig.desk(limits=Limits(tokens=50_000))

        report = await do(agent, desk)

        assert (report.status, report.reason) == ("failed", str(error))
        assert len(requests(agent)) == 1
        assert desk.budget.held == 0
        assert desk.budget.used().tokens == 0


async def test_a_garbled_reply_is_asked_for_again_and_paid_for(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        agent = spec(raises(ModelReplyError("garbage")))
        desk = rig.desk()

        report = await do(agent, desk)

        assert report.status == "done"
        assert desk.budget.usage.prompt_tokens > report.summary.count("x")
        assert len(requests(agent)) == 2


async def test_a_full_disk_gives_a_failed_report(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        report = await do(spec(raises(StoreFull("no room on `/`: free some"))), rig.desk())

        assert (report.status, report.reason) == ("failed", "no room on `/`: free some")


async def test_a_programming_error_is_not_hidden_and_frees_what_it_held(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        desk = rig.desk(limits=Limits(tokens=50_000))

        with pytest.raises(ZeroDivisionError):
            await do(spec(raises(ZeroDivisionError())), desk)

        assert desk.budget.held == 0


async def test_the_soft_line_gives_one_short_notice(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("step"))
        agent = spec([call("step")] * 9 + ["Done."], "step")

        report = await do(agent, rig.desk("step", limits=Limits(calls=10)))

        told = [m.content for m in requests(agent)[-1].messages if m.role == "user"][1:]
        assert told == ["Most of your budget is spent. Do only what still matters, then answer."]
        assert roles(requests(agent)[8]).endswith("atu")
        assert report.status == "done"


async def test_turns_near_their_end_give_the_notice_as_well(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("step"))
        agent = spec([call("step")] * 4 + ["Done."], "step", max_turns=5)

        report = await do(agent, rig.desk("step"))

        assert last(requests(agent)[4]).startswith("Most of your budget")
        assert report.status == "done"


async def test_spent_turns_are_handed_back_in_a_last_reply_without_tools(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("dump", lambda _: "row\n" * 2_000))
        agent = spec(
            [call("dump"), call("dump"), "Half of it is in ref:dump."], "dump", max_turns=2
        )

        report = await do(agent, rig.desk("dump"))

        assert report.status == "partial"
        assert report.reason == "2 turns were not enough"
        assert report.summary == "Half of it is in ref:dump."
        assert [reference.name for reference in report.references] == ["dump"]
        final = requests(agent)[2]
        assert final.tools == ()
        assert final.max_tokens == 500
        assert last(final).startswith("Stop here: 2 turns were not enough.")


async def test_spent_calls_are_handed_back(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("step", lambda given: given["n"]))
        agent = spec([[call("step", n=n) for n in (1, 2, 3)], "I got two."], "step")

        report = await do(agent, rig.desk("step", limits=Limits(calls=2)))

        results = [m.content for m in requests(agent)[1].messages if m.role == "tool"]
        assert results[:2] == ["1", "2"]
        assert "the budget of 2 calls is spent" in results[2]
        assert (report.status, report.summary) == ("partial", "I got two.")
        assert report.reason == "the budget of tool calls is spent"


async def test_zero_calls_do_not_stop_an_agent_that_makes_none(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("step"))

        report = await do(spec(["Done."], "step"), rig.desk("step", limits=Limits(calls=0)))

        assert report.status == "done"


async def test_spent_tokens_are_handed_back_from_the_slice_that_is_kept(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("read", lambda _: "word " * 700))
        agent = spec(program_until_told("I read some."), "read", max_reply_tokens=500)
        desk = rig.desk("read", limits=Limits(tokens=12_000), kept=2_000)

        report = await do(agent, desk)

        assert (report.status, report.summary) == ("partial", "I read some.")
        assert report.reason.startswith("the budget of 10000 tokens is spent")
        assert (desk.budget.used().tokens or 0) <= 12_000
        assert desk.budget.overshoot == 0
        final = requests(agent)[-1]
        assert sum(m.size for m in final.messages) / 4 < 2_500
        assert "[folded: ref:read_result" in final.messages[3].content


def program_until_told(text: str) -> Callable[[Request], Reply]:
    def program(request: Request) -> Reply:
        return text if last(request).startswith("Stop here") else call("read")

    return program


async def test_a_budget_without_any_room_gives_a_failed_report_without_asking(
    tmp_path: Path,
) -> None:
    async with surroundings(tmp_path) as rig:
        agent = spec(["never"])

        report = await do(agent, rig.desk(limits=Limits(tokens=0)))

        assert report.status == "failed"
        assert "budget of 0 tokens" in report.reason
        assert requests(agent) == []


async def test_the_reply_is_bounded_by_what_the_budget_has_left(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        bounded, roomy, free = spec(["a"]), spec(["b"]), spec(["c"])

        await do(bounded, rig.desk(limits=Limits(tokens=1_000)))
        await do(roomy, rig.desk(limits=Limits(tokens=100_000)))
        await do(free, rig.desk())

        assert 900 < (requests(bounded)[0].max_tokens or 0) < 1_000
        assert requests(roomy)[0].max_tokens == 4_096
        assert requests(free)[0].max_tokens is None


async def test_a_time_that_is_over_stops_the_call_and_hands_back(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        stopped: list[str] = []

        async def hang(_: dict[str, Any]) -> str:
            try:
                await anyio.sleep_forever()
            finally:
                stopped.append("hang")
            return ""

        rig.plug("p", tool("hang", hang), tool("quick", lambda _: "quick result"))
        agent = spec([[call("quick"), call("hang")], "I was slow."], "quick", "hang")

        report = await do(agent, rig.desk("quick", "hang", limits=Limits(wall_s=0.5)))

        assert stopped == ["hang"]
        assert (report.status, report.summary) == ("partial", "I was slow.")
        assert report.reason == "the time is over"
        results = [m.content for m in requests(agent)[1].messages if m.role == "tool"]
        assert results == ["quick result", "This call was stopped before it ended."]


async def test_a_model_that_hangs_past_the_deadline_still_gives_a_report(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("dump", lambda _: "row\n" * 2_000))

        async def program(request: Request) -> Reply:
            if len(request.messages) > 2:
                await anyio.sleep_forever()
            return call("dump")

        desk = rig.desk("dump", limits=Limits(tokens=100_000, wall_s=0.3))

        report = await do(spec(program, "dump"), desk)

        assert report.status == "partial"
        assert [reference.name for reference in report.references] == ["dump"]
        assert desk.budget.held == 0


async def test_cancelling_an_agent_cancels_its_calls_and_frees_its_budget(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        begun, cancelled = anyio.Event(), anyio.Event()

        async def hang(_: dict[str, Any]) -> str:
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()
            return ""

        rig.plug("p", tool("hang", hang))
        desk = rig.desk("hang", limits=Limits(tokens=50_000))
        agent = spec([[call("hang"), call("hang")]], "hang")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(do, agent, desk)
            await begun.wait()
            tasks.cancel_scope.cancel()

        assert cancelled.is_set()
        assert desk.budget.held == 0


async def test_a_completion_that_is_cancelled_is_paid_with_its_prompt(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        asked = anyio.Event()

        async def program(_: Request) -> Reply:
            asked.set()
            await anyio.sleep_forever()
            return ""

        desk = rig.desk(limits=Limits(tokens=50_000))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(do, spec(program), desk)
            await asked.wait()
            tasks.cancel_scope.cancel()

        assert desk.budget.held == 0
        assert 0 < (desk.budget.used().tokens or 0) < 100


async def test_old_results_fold_into_references_and_nothing_is_lost(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("page", lambda given: f"page {given['n']} " + "text " * 500))
        program: list[Reply] = [*(call("page", n=n) for n in range(12)), "Done."]
        agent = spec(program, "page", context_tokens=4_000)

        report = await do(agent, rig.desk("page"))

        assert report.status == "done"
        for request in requests(agent):
            assert sum(m.size for m in request.messages) / 4 < 4_000
        final = requests(agent)[-1].messages
        assert "page 11" in final[-1].content
        assert final[2].content.startswith("[earlier turns, folded: ") or final[
            3
        ].content.startswith("[folded: ref:page_result")
        kept = [
            await rig.objects.read(reference)
            for reference in await rig.objects.listing(namespace="r1")
        ]
        assert any(b"page 0 text" in content for content in kept)


async def test_a_folded_result_that_was_stored_names_its_own_reference(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("dump", lambda _: {"rows": ["x" * 80] * 200}))
        agent = spec([call("dump")] * 12 + ["Done."], "dump", context_tokens=900)

        await do(agent, rig.desk("dump"))

        names = [reference.name for reference in await rig.objects.listing(namespace="r1")]
        assert not [name for name in names if name.startswith("dump_result")]


async def test_a_fold_keeps_the_prefix_for_a_while(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("page", lambda _: "text " * 200))
        agent = spec([call("page")] * 30 + ["Done."], "page", context_tokens=6_000)

        await do(agent, rig.desk("page"))

        turns = requests(agent)
        broken = [
            n
            for n, (before, after) in enumerate(zip(turns, turns[1:], strict=False))
            if after.messages[: len(before.messages)] != before.messages
        ]
        assert broken
        assert min((b - a for a, b in zip(broken, broken[1:], strict=False)), default=9) > 2


async def test_a_task_that_is_too_long_says_what_to_do(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        agent = spec(["never"], context_tokens=1_000)

        report = await do(agent, rig.desk(), "word " * 2_000)

        assert report.status == "failed"
        assert "`context_tokens` is 1,000: pass large values by reference" in report.reason
        assert requests(agent) == []


async def test_a_conversation_the_endpoint_finds_too_long_is_folded_once(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("page", lambda _: "text " * 600))
        shown: list[int] = []

        def program(request: Request) -> Reply:
            shown.append(sum(m.size for m in request.messages))
            if len(shown) > 4 and shown[-1] > 6_000:
                raise ModelRejected("context length exceeded", 400)
            return "Done." if len(shown) > 5 else call("page")

        report = await do(spec(program, "page"), rig.desk("page"))

        assert report.status == "done"
        assert shown[5] < 6_000 < shown[4]


async def test_a_request_that_is_refused_again_after_folding_is_given_up(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("page", lambda _: "text " * 600))

        def program(request: Request) -> Reply:
            if len(request.messages) > 2:
                raise ModelRejected("bad request", 400)
            return call("page")

        agent = spec(program, "page")

        report = await do(agent, rig.desk("page"))

        assert (report.status, report.reason) == ("partial", "bad request")
        assert len(requests(agent)) == 3


async def test_an_endpoints_count_corrects_the_estimate(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("step"))
        dense = Completion(calls=(call("step"),), usage=Usage(5_000, 10))
        agent = spec([dense, "Done."], "step")
        desk = rig.desk("step", limits=Limits(tokens=5_400))

        report = await do(agent, desk)

        assert report.reason.startswith("the budget of 5400 tokens is spent")
        assert desk.budget.used().tokens == 5_010
        assert desk.budget.overshoot > 0


async def test_a_model_that_counts_nothing_is_charged_an_estimate(tmp_path: Path) -> None:
    class Uncounted:
        name = "uncounted"
        context_tokens = 32_000

        async def complete(
            self, request: Request, *, on_text: Callable[[str], None] | None = None
        ) -> Completion:
            return Completion(text="Done.")

        async def aclose(self) -> None:
            pass

    async with surroundings(tmp_path) as rig:
        desk = rig.desk()
        agent = AgentSpec(name="w", instructions="You work.", model=Uncounted())

        report = await do(agent, desk)

        assert report.spent.usage == Usage(4, 2)
        assert desk.budget.used().tokens == 6


async def test_a_long_answer_is_stored_whole_and_travels_by_reference(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        answer = "A finding. " * 400

        report = await do(spec([answer]), rig.desk())

        assert len(report.summary) <= 2_100
        (whole,) = report.references
        assert whole.short in report.summary
        assert (await rig.objects.read(whole)).decode() == answer.strip()


async def test_references_that_an_answer_names_are_attached_when_readable(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        mine = await rig.put("1", "mine")
        given = await rig.put("2", "given", owner="local")
        foreign = await rig.put("3", "foreign", owner="r1/9")
        desk = rig.desk()
        grant = replace(desk.caller.grant, references=frozenset({given.id}))
        desk = replace(desk, caller=replace(desk.caller, grant=grant))
        text = f"See ref:mine. {given.uri}, ref:mine#/0 again, {foreign.uri}, ref:none and ref:..."

        report = await do(spec([text]), desk)

        assert [reference.id for reference in report.references] == [mine.id, given.id]


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "why": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}


async def test_an_answer_that_meets_its_schema_is_a_value(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        agent = spec(['```json\n{"n": 3}\n```'])

        report = await do(agent, rig.desk(), Task("How many?", answer_schema=SCHEMA))

        assert (report.status, report.answer) == ("done", {"n": 3})
        assert requests(agent)[0].response_schema == SCHEMA
        assert json.dumps(SCHEMA, separators=(",", ":")) in last(requests(agent)[0])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("Three.", "not valid JSON"),
        ('{"n": "3"}', "$.n: \"'3' is not of type 'integer'\""),
        ('{"n": 3, "x": 1}', "Additional properties"),
        ("{}", "'n' is a required property"),
    ],
)
async def test_an_answer_that_does_not_is_repaired(tmp_path: Path, wrong: str, told: str) -> None:
    async with surroundings(tmp_path) as rig:
        agent = spec([wrong, '{"n": 3}'])

        report = await do(agent, rig.desk(), Task("How many?", answer_schema=SCHEMA))

        assert report.answer == {"n": 3}
        assert told in last(requests(agent)[1])
        assert requests(agent)[1].messages[-2] == Message("assistant", wrong)


async def test_an_agent_with_tools_is_held_to_its_schema_only_for_a_repair(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("count"))
        agent = spec([call("count"), "Three.", '{"n": 3}'], "count")

        report = await do(agent, rig.desk("count"), Task("How many?", answer_schema=SCHEMA))

        assert report.answer == {"n": 3}
        asked = requests(agent)
        assert [each.response_schema for each in asked] == [None, None, SCHEMA]
        assert [len(each.tools) for each in asked] == [1, 1, 0]


async def test_repairs_of_an_answer_are_bounded(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        agent = spec(["no"] * 10)

        report = await do(agent, rig.desk(), Task("How many?", answer_schema=SCHEMA))

        assert report.status == "partial"
        assert report.answer is None
        assert "not valid JSON" in report.reason
        assert len(requests(agent)) == 4


@pytest.mark.parametrize(
    ("text", "answer"), [('{"n": 1}', {"n": 1}), ("About one.", None)], ids=["value", "prose"]
)
async def test_a_last_report_gives_its_answer_where_it_can(
    tmp_path: Path, text: str, answer: object
) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("count"))
        agent = spec([call("count"), text], "count", max_turns=1)

        report = await do(agent, rig.desk("count"), Task("How many?", answer_schema=SCHEMA))

        assert (report.status, report.summary, report.answer) == ("partial", text, answer)


@pytest.mark.parametrize("final", ["", raises(ModelUnavailable("gone"))])
async def test_without_a_last_reply_the_last_words_are_the_report(
    tmp_path: Path, final: Callable[[Request], Reply] | str
) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("count"))
        said = Completion(text="I begin to count.", calls=(call("count"),))

        def program(request: Request) -> Reply:
            if roles(request) == "su":
                return said
            return final if isinstance(final, str) else final(request)

        report = await do(spec(program, "count", max_turns=1), rig.desk("count"))

        assert (report.status, report.summary) == ("partial", "I begin to count.")


async def test_an_answer_that_was_cut_off_is_partial(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        report = await do(spec([Completion(text="It is th", finish="length")]), rig.desk())

        assert (report.status, report.summary) == ("partial", "It is th")
        assert report.reason == "the reply was cut off at its limit"


async def test_words_that_arrive_while_it_works_are_heard_before_the_next_turn(
    tmp_path: Path,
) -> None:
    async with surroundings(tmp_path) as rig:
        desk = rig.desk("wait")
        rig.plug("p", tool("wait", lambda _: desk.inbox.extend(["Hurry.", "Be brief."])))
        agent = spec([call("wait"), "Done."], "wait")

        await do(agent, desk)

        assert [m.content for m in requests(agent)[1].messages[-2:]] == ["Hurry.", "Be brief."]
        assert desk.inbox == []


async def test_text_streams_to_whoever_listens(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        heard: list[str] = []

        await do(spec(["Done."]), replace(rig.desk(), on_text=heard.append))

        assert heard == ["Done."]


async def test_siblings_under_one_budget_never_overspend_it(tmp_path: Path) -> None:
    async with surroundings(tmp_path) as rig:
        rig.plug("p", tool("step"))
        root = rig.desk("step", limits=Limits(tokens=9_000))
        reports: list[Report] = []

        async def sibling(n: int) -> None:
            budget = root.budget.child(Limits())
            desk = replace(root, budget=budget, caller=replace(root.caller, meter=budget))
            model = ScriptedModel([call("step"), f"Done {n}."], latency_s=0.001)
            worker = AgentSpec(name="w", instructions="", model=model, tools=("step",))
            reports.append(await do(worker, desk))

        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(sibling, n)

        assert [report.status for report in reports] == ["done"] * 20
        assert (root.budget.used().tokens or 0) <= 9_000
        assert root.budget.overshoot == 0
        assert root.budget.held == 0


async def test_an_agent_with_very_many_tools_is_shown_what_it_finds(tmp_path: Path) -> None:
    found = {"tools": [{"name": "tool_30"}, {"name": "tool_02"}]}
    names = [f"tool_{n:02}" for n in range(60)]
    who = spec(
        [call("find_tools", queries=["thirty"]), call("tool_30"), "done"], *names, "find_tools"
    )
    async with surroundings(tmp_path) as at:
        at.plug("many", *(tool(name) for name in names))
        at.plug("search", tool("find_tools", lambda _: json.dumps(found)))

        report = await work(who, Task("Do it."), at.desk(*names, "find_tools"))

    shown = [[each.name for each in request.tools] for request in requests(who)]
    assert report.status == "done"
    assert shown == [["find_tools"], *[["find_tools", "tool_30", "tool_02"]] * 2]
    assert "many more tools" in requests(who)[0].messages[0].content
