"""Settings that belong together. All stand at the top level of the file, as if they were one."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CodeSettings", "RunSettings", "TrustSettings"]


class TrustSettings(BaseModel):
    """What is asked about, held back, watched and confined."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ask_first: tuple[str, ...] = Field(
        default=(),
        description="Tools that a person is asked about before each call; `*` and `?` match.",
    )
    ask_destructive: Literal["always", "agents", "never"] = Field(
        default="always",
        description="Of whose calls a person is asked first where a tool says that it destroys: "
        "of all (`always`), of agents' only (`agents`), of none (`never`).",
    )
    ask_wait_s: float = Field(
        default=300.0, gt=0, description="Seconds after which an unanswered question is declined."
    )
    pin: Literal["remote", "all", "none"] = Field(
        default="remote",
        description="Whose definitions are pinned when first seen, so that a change waits for "
        "`guildry review`: those of servers and OpenAPI documents (`remote`), of files on this "
        "machine too (`all`), nobody's (`none`). `trust` of a plug goes before it.",
    )
    flow: Literal["off", "warn", "ask", "refuse"] = Field(
        default="warn",
        description="What happens where labelled values (`untrusted:…`) go into a call that writes "
        "or reaches out: nothing, a word in journal and log, a question, a refusal.",
    )
    flow_allow: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Labels that may go into a tool all the same: `[flow_allow]` with "
        '`save_note = ["untrusted:web"]`; `*` and `?` match in both.',
    )
    sandbox: Literal["auto", "required", "off"] = Field(
        default="auto",
        description="`auto` confines plugs with `[plugs.NAME.sandbox]` and what a model wrote, "
        "where bubblewrap works; `required` confines every server process and runs none that "
        "cannot be; `off` confines nothing.",
    )
    shell: bool = Field(
        default=False,
        description="Whether there is the tool `run_shell`, which runs a command in a sandbox.",
    )
    making: bool = Field(
        default=False,
        description="Whether there is the tool `propose_tool`, by which agents propose new tools; "
        "not where `sandbox` is `off`.",
    )
    making_policy: Literal["ask", "tests"] = Field(
        default="ask",
        description="Who decides about a proposed tool whose tests pass: a person (`ask`), or "
        "nobody else where the tests ran in a sandbox (`tests`).",
    )


class RunSettings(BaseModel):
    """What one run may use up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_tokens: int = Field(
        default=1_000_000, ge=0, description="Tokens that one run may spend, children included."
    )
    run_calls: int = Field(default=2_000, ge=0, description="Tool calls that one run may make.")
    run_agents: int = Field(default=200, ge=0, description="Agents that one run may spawn.")
    run_wall_s: float = Field(default=3_600.0, ge=0, description="Seconds that one run may take.")
    run_depth: int = Field(default=3, ge=0, description="Generations of agents below a run's root.")


class CodeSettings(BaseModel):
    """What programs that a model wrote may use up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: bool = Field(
        default=True, description="Whether there is `run_code`, if `guildry[code]` is installed."
    )
    code_cpu_s: float = Field(default=30.0, gt=0, description="Seconds a program may compute.")
    code_wall_s: float = Field(
        default=900.0, gt=0, description="Seconds after which a program is set aside for later."
    )
    code_memory_mb: int = Field(default=128, ge=8, description="Number of MB a program may use.")
    code_calls: int = Field(default=500, ge=0, description="Number of calls a program may make.")
