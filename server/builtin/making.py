"""The tools by which new tools are proposed, decided about, listed and taken back."""

from typing import TYPE_CHECKING, Any, Final, Literal, cast

import anyio
import structlog
from anyio import to_thread

from guildry.errors import PlugError, ToolFailed, ToolRetry
from guildry.memory.events import Messaged
from guildry.memory.proposals import Proposal, ProposalStore
from guildry.server.builtin.schemas import parameters, structured
from guildry.server.parts import BUILTIN, App
from guildry.server.plug_settings import setting_of
from guildry.tools.asking.board import DEADLINE, NOBODY
from guildry.tools.asking.questions import Answer, Ask, Question
from guildry.tools.base import READS, SOME_OBJECT, Call, Effects, Json, Outcome, Tool
from guildry.tools.making.draft import Draft
from guildry.tools.making.shelf import Shelf
from guildry.tools.making.trial import Trial, Verdict

if TYPE_CHECKING:
    from guildry.tools.caller import Caller

__all__ = ["Making"]

log = structlog.get_logger()

_PROPOSES: Final = Effects(writes=True, egress=False, destructive=False, idempotent=False)
_DECIDES: Final = Effects(writes=True, egress=False, destructive=False, idempotent=True)
_SAID: Final[dict[str, Any]] = {
    "trust": "own",
    "sandbox": {"network": False, "memory_mb": 512, "processes": 32, "file_mb": 64},
}
"""What is said of the plug of a made tool: it was approved as it is, and is confined."""

_PROPOSE_S: Final = 300.0
_MOST_WAITING: Final = 20
_LISTED: Final = 50
_NAME: Final[dict[str, Json]] = {"type": "string", "description": "Of the tool."}
_VERSION: Final[dict[str, Json]] = {"type": "integer", "minimum": 1}


class Making:
    """Make the tools by which tools are made, where the settings want them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._proposals = ProposalStore(app.store)
        self._trial = Trial(app.settings.sandbox)
        self._shelf = Shelf(app.settings.home)
        self._serving = anyio.Lock()

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed, or none."""
        settings = self._app.settings
        if not settings.making or settings.sandbox == "off":
            return ()
        return (
            self._propose_tool(),
            Tool(
                name="list_proposals",
                plug=BUILTIN,
                description=(
                    "List proposed tools and what became of them; with a name, all versions of one"
                    " with source and tests."
                ),
                input_schema=parameters([], name=_NAME),
                output_schema=SOME_OBJECT,
                invoke=self._list,
                effects=READS,
            ),
            Tool(
                name="decide_proposal",
                plug=BUILTIN,
                description="Approve a proposed tool, which is then served, or reject it.",
                input_schema=parameters(
                    ["name", "approve"],
                    name=_NAME,
                    version={**_VERSION, "description": "The newest if not given."},
                    approve={"type": "boolean"},
                ),
                output_schema=SOME_OBJECT,
                invoke=self._decide,
                effects=_DECIDES,
                timeout_s=120.0,
                scope="admin",
            ),
            Tool(
                name="rollback_tool",
                plug=BUILTIN,
                description="Serve an earlier version of a made tool again.",
                input_schema=parameters(["name", "version"], name=_NAME, version=_VERSION),
                output_schema=SOME_OBJECT,
                invoke=self._rollback,
                effects=_DECIDES,
                timeout_s=120.0,
                scope="admin",
            ),
        )

    def _propose_tool(self) -> Tool:
        return Tool(
            name="propose_tool",
            plug=BUILTIN,
            description=(
                "Propose a new tool: one public Python function with type hints, without network"
                " and files. Its tests must pass, and must fail for a function that does nothing."
            ),
            input_schema=parameters(
                ["name", "description", "source", "tests"],
                name={**_NAME, "description": "Of the tool and its function, as `count_words`."},
                description={"type": "string", "description": "What it is for."},
                source={"type": "string", "description": "The module; helpers begin with `_`."},
                tests={
                    "type": "string",
                    "description": "Functions `test_…()` with `assert`; they may call the tool.",
                },
            ),
            output_schema=SOME_OBJECT,
            invoke=self._propose,
            effects=_PROPOSES,
            timeout_s=_PROPOSE_S,
            asks=self._app.settings.making_policy == "ask",
        )

    # Proposing ----------------------------------------------------------------------------------

    async def _propose(self, arguments: dict[str, Json], call: Call) -> Outcome:
        caller = cast("Caller", call.caller)
        draft = Draft(**{name: cast("str", arguments[name]) for name in _FIELDS})
        await to_thread.run_sync(draft.check)
        await self._check_room(draft.name, caller.grant.chain[0])
        verdict = await self._trial.run(draft)
        proposal = await self._proposals.add(
            name=draft.name,
            principal=caller.grant.chain[0],
            run=caller.run,
            description=draft.description,
            source=draft.source,
            tests=draft.tests,
            status="failed" if verdict.fault else "waiting",
            verdict=verdict.as_json(),
        )
        self._note(caller, proposal, proposal.status)
        if verdict.fault:
            raise ToolRetry(f"`{draft.name}` was not proposed: {verdict.fault}")
        by = await self._approved_by(proposal, verdict, call.ask)
        if by is None:
            return structured(await self._status(proposal))
        return structured(await self._serve(caller, proposal, by))

    async def _check_room(self, name: str, principal: str) -> None:
        """See that a tool of that name may be proposed.

        Raises:
            ToolRetry: something else has the name, or too much waits for a decision.
        """
        known = await self._proposals.get(name)
        plug = self._app.plugs.said_of(name)
        taken = self._app.catalog.current.tools.get(name)
        ours = plug is not None and self._shelf.holds(plug[1])
        if (plug is not None and not ours) or (taken is not None and taken.plug != name):
            raise ToolRetry(f"there is another tool or plug named `{name}`: choose another name")
        if known is not None and known.principal != principal:
            raise ToolRetry(f"somebody else has proposed a tool `{name}`: choose another name")
        mine = await self._proposals.listing(principal=principal)
        if sum(each.status == "waiting" for each in mine) >= _MOST_WAITING:
            raise ToolRetry(
                f"{_MOST_WAITING} of your proposals wait for a decision: wait for some of them"
            )

    async def _approved_by(
        self, proposal: Proposal, verdict: Verdict, ask: Ask | None
    ) -> str | None:
        """Return who approves a proposal, or None where nobody does at this time."""
        if self._app.settings.making_policy == "tests" and verdict.is_confined:
            return "tests"
        if ask is None:
            return None
        answer: Answer = await ask(_question(proposal, verdict))
        if answer.action == "accept":
            return answer.by
        if answer.action == "decline" and answer.by not in (DEADLINE, NOBODY):
            await self._proposals.decide(proposal, "rejected", answer.by)
        return None

    # Deciding -----------------------------------------------------------------------------------

    async def _decide(self, arguments: dict[str, Json], call: Call) -> Outcome:
        proposal = await self._found(arguments)
        if proposal.status not in ("waiting", "rejected"):
            raise ToolRetry(f"{_named(proposal)} is {proposal.status}: there is nothing to decide")
        caller = cast("Caller", call.caller)
        if arguments["approve"]:
            return structured(await self._serve(caller, proposal, caller.grant.holder))
        await self._proposals.decide(proposal, "rejected", caller.grant.holder)
        self._note(caller, proposal, "rejected")
        return structured(await self._status(proposal))

    async def _rollback(self, arguments: dict[str, Json], call: Call) -> Outcome:
        proposal = await self._found(arguments)
        if proposal.status not in ("replaced", "served"):
            raise ToolRetry(f"{_named(proposal)} is {proposal.status}: it was never served")
        caller = cast("Caller", call.caller)
        return structured(await self._serve(caller, proposal, caller.grant.holder))

    async def _list(self, arguments: dict[str, Json], call: Call) -> Outcome:
        grant = cast("Caller", call.caller).grant
        principal = None if "admin" in grant.scopes else grant.chain[0]
        name = cast("str | None", arguments.get("name"))
        found = await self._proposals.listing(principal=principal, name=name, limit=_LISTED)
        return structured({"proposals": [self._told(each, name is not None) for each in found]})

    # Serving ------------------------------------------------------------------------------------

    async def _serve(self, caller: "Caller", proposal: Proposal, by: str) -> dict[str, Json]:
        """Serve a version in the place of any other, here and in the other processes of the home.

        Raises:
            ToolFailed: it cannot be served; what was served before goes on.
        """
        name, app = proposal.name, self._app
        draft = Draft(name, proposal.description, proposal.source, proposal.tests)
        async with self._serving:
            try:
                text = await to_thread.run_sync(draft.documented)
                path = await to_thread.run_sync(self._shelf.put, name, proposal.version, text)
                options = setting_of(name, str(path), _SAID).options()
                report = await app.plugs.plug(str(path), name, options=options, replace=True)
            except (OSError, PlugError) as error:
                raise ToolFailed(f"{_named(proposal)} cannot be served: {error}") from error
            if not report.tools:
                await app.plugs.unplug(name)
                reasons = "; ".join(each.reason for each in report.quarantined)
                raise ToolFailed(f"{_named(proposal)} cannot be served: {reasons}")
            await self._proposals.serve(proposal, by)
            await app.by_hand.add(name, str(path), _SAID)
        self._note(caller, proposal, "served")
        log.info("made_tool_served", tool=name, version=proposal.version, by=by)
        return {**await self._status(proposal), "tools": list(report.tools)}

    async def _found(self, arguments: dict[str, Json]) -> Proposal:
        name, version = cast("str", arguments["name"]), arguments.get("version")
        found = await self._proposals.get(name, version)
        if found is None:
            which = f"version {version} of `{name}`" if version else f"`{name}`"
            raise ToolRetry(f"{which} was never proposed: see `list_proposals`")
        return found

    async def _status(self, proposal: Proposal) -> dict[str, Json]:
        now = await self._proposals.get(proposal.name, proposal.version)
        return self._told(now or proposal, whole=False)

    def _told(self, proposal: Proposal, whole: bool) -> dict[str, Json]:
        told: dict[str, Json] = {
            "name": proposal.name,
            "version": proposal.version,
            "status": proposal.status,
            "description": proposal.description,
            "verdict": proposal.verdict,
        }
        if proposal.status == "waiting":
            told["next"] = "A person decides: `decide_proposal`. Go on without it."
        if proposal.decided_by:
            told["decided_by"] = proposal.decided_by
        return {**told, "source": proposal.source, "tests": proposal.tests} if whole else told

    def _note(
        self,
        caller: "Caller",
        proposal: Proposal,
        status: Literal["failed", "waiting", "rejected", "served", "replaced"],
    ) -> None:
        holder = caller.grant.holder
        body = {"tool": proposal.name, "version": proposal.version, "status": status}
        self._app.journal.append(caller.run, Messaged(holder, holder, "proposal", body))


_FIELDS: Final = ("name", "description", "source", "tests")


def _question(proposal: Proposal, verdict: Verdict) -> Question:
    where = "in a sandbox" if verdict.is_confined else "WITHOUT a sandbox, within limits only"
    return Question(
        key=f"make:{proposal.name}:{proposal.version}",
        kind="approval",
        message=(
            f"Serve the new tool {_named(proposal)}?\n{proposal.description}\n"
            f"Its {verdict.tests} tests passed {where}."
        ),
        arguments={"source": proposal.source, "tests": proposal.tests},
    )


def _named(proposal: Proposal) -> str:
    return f"`{proposal.name}` version {proposal.version}"
