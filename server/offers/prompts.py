"""Prompts: those of plugs, and one for each way of setting agents to work. Knows no transport."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from guildry.errors import ToolFailed, ToolRetry
from guildry.memory.references import parse_handle
from guildry.server.offers.cursors import page_of
from guildry.server.offers.wire import prompt_to_wire
from guildry.tools.base import Text
from guildry.tools.offers import Message, Messages, Prompt, PromptArgument
from guildry.tools.registry import nearest

if TYPE_CHECKING:
    from guildry.server.offers.suggest import Suggestions
    from guildry.server.parts import App
    from guildry.tools.asking.questions import Channel
    from guildry.tools.base import Log, Tool
    from guildry.tools.caller import Caller

__all__ = ["Prompts", "team_of"]

_PAGE: Final = 100
_SECTION: Final = "prompts"
_SCOPE: Final = "tools"
_TEAMS: Final = "teams"
_TEAM: Final = "team_"
_DELEGATE: Final = "delegate"
_TASK: Final = PromptArgument("task", "What is to be done.", required=True)
_TOOLS: Final = PromptArgument(
    "tools", "Names of the tools it may call, with commas between them.", required=True
)
_REFERENCES: Final = PromptArgument(
    "references", "What it may read: `ref:name` or `ref://id`, with commas between them."
)


def team_of(tool: "Tool") -> str | None:
    """Return the name of the team that a tool sets to work, if it is such a tool."""
    if tool.scope != _TEAMS or not tool.name.startswith(_TEAM):
        return None
    return tool.name.removeprefix(_TEAM)


class Prompts:
    """What one principal may choose from."""

    def __init__(self, app: "App", caller: "Caller", suggestions: "Suggestions") -> None:
        self._app = app
        self._caller = caller
        self._suggestions = suggestions
        self._known: tuple[int, Mapping[str, Prompt]] = (-1, {})

    def known(self) -> Mapping[str, Prompt]:
        """Return the prompts by name."""
        version = self._app.catalog.current.version
        if self._known[0] != version:
            self._known = (version, self._gathered())
        return self._known[1]

    def listing(self, cursor: str | None) -> dict[str, Any]:
        """Return a page of prompts, by name. It may be another one at any moment.

        Raises:
            ToolRetry: `cursor` is no cursor of this list.
        """
        entries = {name: prompt_to_wire(prompt) for name, prompt in self.known().items()}
        found, more = page_of(entries, cursor, _SECTION, _PAGE)
        page: dict[str, Any] = {"prompts": found, "ttlMs": 0, "cacheScope": "private"}
        return page if more is None else {**page, "nextCursor": more}

    def named(self, name: str) -> Prompt:
        """Return the prompt of that name.

        Raises:
            ToolRetry: there is none; names the nearest.
        """
        known = self.known()
        if name in known:
            return known[name]
        near = nearest(name, tuple(known))
        cure = f"did you mean `{near}`?" if near else "take one that was listed"
        raise ToolRetry(f"there is no prompt {name!r} here: {cure}")

    async def get(
        self,
        name: str,
        arguments: Mapping[str, str],
        channel: "Channel | None" = None,
        log: "Log | None" = None,
    ) -> Messages:
        """Fill a prompt in.

        Args:
            name: of the prompt.
            arguments: its arguments.
            channel: the way to the client that wants it.
            log: where log messages for that client go.

        Raises:
            ToolRetry: there is no such prompt, or an argument is unknown, missing or wrong.
            ToolError: it cannot be filled in.
        """
        prompt = self.named(name)
        _check(prompt, arguments)
        caller = replace(self._caller, channel=channel, log=log)
        limit_s = self._app.patience_s(asks=channel is not None)
        with anyio.move_on_after(limit_s):
            return await prompt.get(arguments, caller)
        raise ToolFailed(f"`{name}` has not answered within {limit_s:g} s: try again later")

    def _gathered(self) -> Mapping[str, Prompt]:
        scopes = self._caller.grant.scopes
        current = self._app.catalog.current
        own: dict[str, Prompt] = {}
        if _TEAMS in scopes:
            for tool in current:
                if team_of(tool) is not None or tool.name == _DELEGATE:
                    own[tool.name] = self._of_agents(tool)
        if _SCOPE not in scopes:
            return own
        plugged: dict[str, Prompt] = {}
        for name, prompt in current.prompts.items():
            free = name
            while free in own or (free != name and free in current.prompts):
                free = f"{prompt.plug}_{free}"
            plugged[free] = prompt if free == name else replace(prompt, name=free)
        return {**own, **plugged}

    def _of_agents(self, tool: "Tool") -> Prompt:
        """Return the prompt that has the client's model set agents to work."""
        tools = (_TOOLS,) if tool.name == _DELEGATE else ()
        return Prompt(
            name=tool.name,
            plug=tool.plug,
            get=partial(_set_to_work, tool),
            title=tool.title or (f"Team {team}" if (team := team_of(tool)) else "Delegate a task"),
            description=tool.description,
            arguments=(_TASK, *tools, _REFERENCES),
            complete=self._suggestions.of_prompt,
            icons=tool.icons,
        )


async def _set_to_work(tool: "Tool", arguments: Mapping[str, str], caller: Any) -> Messages:
    task = arguments["task"].strip()
    if not task:
        raise ToolRetry("`task` is empty: say what is to be done")
    parts = [f"Call the tool `{tool.name}` with this `task`, word for word:", task]
    if named := _listed(arguments.get("tools", "")):
        parts.append(f"Let it use these `tools`: {', '.join(named)}")
    elif "tools" in arguments:
        raise ToolRetry("`tools` is empty: name at least one tool")
    if references := _listed(arguments.get("references", "")):
        for each in references:
            handle = parse_handle(each)
            if handle is None or handle.selector is not None:
                raise ToolRetry(
                    f"`references` names {each!r}: give `ref:name` or `ref://id`, with commas"
                    " between them"
                )
        parts.append(f"Give it these `references`: {', '.join(references)}")
    parts.append("Then tell me what its report says, and name the references that it gives.")
    text = Text("\n\n".join(parts))
    return Messages((Message("user", text),), tool.description)


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(each for each in text.replace(",", " ").split() if each))


def _check(prompt: Prompt, arguments: Mapping[str, str]) -> None:
    known = [each.name for each in prompt.arguments]
    for name in arguments:
        if name not in known:
            near = nearest(name, known)
            takes = ", ".join(f"`{each}`" for each in known) or "no arguments"
            cure = f"did you mean `{near}`?" if near else f"it takes {takes}"
            raise ToolRetry(f"`{prompt.name}` has no argument {name!r}: {cure}")
    for each in prompt.arguments:
        if each.required and each.name not in arguments:
            about = f" ({each.description})" if each.description else ""
            raise ToolRetry(f"`{prompt.name}` needs the argument `{each.name}`{about}: give it")
