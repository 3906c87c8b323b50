"""What a client's model is told of this server, in under 300 tokens, and the server's icon."""

import base64
from collections.abc import Collection
from typing import Final

__all__ = ["DESCRIPTION", "ICON", "instructions"]

DESCRIPTION: Final = (
    "Tools of many sources, and teams of agents that use them, behind one endpoint."
)
"""What the server is, in one line."""

_TOOLS: Final = (
    "Tools, prompts and resources of many sources behind one endpoint. Not every tool is listed:"
    " say what you need to `find_tools`, see schemas with `describe_tools`, and call what is found"
    " with `call_tool`.",
    "A long result comes back as a reference (`ref:name`) with its shape and its beginning. Read"
    " parts with `read_reference`, or give the reference itself as an argument of any tool: the"
    " value is passed on without your reading it.",
    "Resources `skill://…/SKILL.md` tell how to do a kind of task: read one before you begin.",
)
_TEAMS: Final = (
    "`team_*` and `delegate` have agents do a task with tools of this server; give them all that"
    " they need to know, and large inputs as `references`. What takes long is best begun with"
    " `background: true`, which answers with a run's id: `run_status` tells how far it is,"
    " `run_result` what came of it; `run_steer`, `run_answer` and `run_cancel` reach its agents.",
)
_ADMIN: Final = ("`plug` and `unplug` add and remove sources of tools while you work.",)

_DRAWING: Final = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24'><path fill='#b45309' d='M12 1 22 7"
    "v10l-10 6L2 17V7z'/><path fill='none' stroke='#fff' stroke-width='2' d='M16 9a5 5 0 1 0 1 4h-5"
    "'/></svg>"
)
ICON: Final = f"data:image/svg+xml;base64,{base64.b64encode(_DRAWING.encode()).decode('ascii')}"
"""Guildry's icon, as a `data:` URI."""


def instructions(scopes: Collection[str]) -> str:
    """Return how to use the server, for a caller with these scopes."""
    parts = (
        *(_TOOLS if "tools" in scopes else ()),
        *(_TEAMS if "teams" in scopes else ()),
        *(_ADMIN if "admin" in scopes else ()),
    )
    return "\n".join(parts)
