"""The doctor: what is there, what is missing, and the command that mends it. Changes nothing."""

import os
import platform
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import anyio
from anyio import to_thread

from guildry import __version__
from guildry.errors import GuildryError, ModelRejected, ModelUnavailable, PlugError, StoreLocked
from guildry.server.commands.exits import leaves
from guildry.server.config import find_file, unknown_variables

if TYPE_CHECKING:
    from guildry.server.config import ModelSetting, Settings
    from guildry.tools.plugs.plug import Wanted

__all__ = ["Finding", "Status", "examine", "is_healthy"]

Status = Literal["ok", "absent", "warning", "failed"]

_MIN_FREE_BYTES: Final = 200 * 1024 * 1024
_OPTIONAL: Final = frozenset({"git", "node", "npx", "bubblewrap", "gpu", "sglang"})
_PROBE_S: Final = 10.0
_MODEL_S: Final = 5.0
_PLUG_S: Final = 20.0
_MAY_CONFINE: Final = (
    "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0 (in a container: give it"
    " `--security-opt seccomp=unconfined`)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Args:
        check: what was looked at, such as `git` or `plug time`.
        status: `ok`; `absent` when something optional is not there; `warning`; `failed`.
        detail: what was found.
        cure: the command or the change that mends it; empty where there is nothing to mend.
    """

    check: str
    status: Status
    detail: str
    cure: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding by name."""
        return asdict(self)


Check = Callable[[], Awaitable[Sequence[Finding]]]


def is_healthy(findings: Sequence[Finding]) -> bool:
    """Tell whether nothing failed."""
    return all(finding.status != "failed" for finding in findings)


async def examine(settings: "Settings", *, config: str | None = None) -> list[Finding]:
    """Look at everything side by side, each check with a bound, and return what was found.

    Args:
        settings: those in force.
        config: the configuration file that was named on the command line.
    """
    checks: list[tuple[str, float, Check]] = [
        ("python", _PROBE_S, _python),
        ("configuration", _PROBE_S, partial(_configuration, settings, config)),
        ("home", _PROBE_S, partial(_home, settings.home)),
        ("database", _PROBE_S, partial(_database, settings.database)),
        ("git", _PROBE_S, partial(_program, "git", "the demo and git plugs need it", "git")),
        ("node", _PROBE_S, partial(_program, "node", "plugs from npm need it", "nodejs")),
        ("npx", _PROBE_S, partial(_program, "npx", "plugs from npm need it", "npm")),
        ("bubblewrap", 2 * _PROBE_S, partial(_sandbox, settings)),
        ("gpu", _PROBE_S, _gpu),
        ("sglang", _PROBE_S, _sglang),
        ("plugs", _PLUG_S + _PROBE_S, partial(_plugs, settings)),
        ("packages", _PROBE_S, _packages),
        ("teams", _PROBE_S, partial(_teams, settings)),
        ("models", 2 * _MODEL_S, partial(_models, settings)),
    ]
    found: list[Sequence[Finding]] = [()] * len(checks)

    async def look(n: int) -> None:
        name, limit_s, check = checks[n]
        try:
            with anyio.fail_after(limit_s):
                found[n] = await check()
        except TimeoutError:
            status: Status = "warning" if name in _OPTIONAL else "failed"
            found[n] = [Finding(name, status, f"gave no answer in {limit_s:g} s")]
        except Exception as error:
            cause = next(leaves(error))
            found[n] = [Finding(name, "failed", f"{type(cause).__name__}: {cause}")]

    async with anyio.create_task_group() as tasks:
        for n in range(len(checks)):
            tasks.start_soon(look, n)
    return [finding for findings in found for finding in findings]


async def _python() -> list[Finding]:
    detail = f"{platform.python_version()} at {sys.executable}; Guildry {__version__}"
    return [Finding("python", "ok", detail)]


async def _configuration(settings: "Settings", config: str | None) -> list[Finding]:
    file = find_file({"config": config, "home": settings.home}, cwd=Path.cwd())
    findings = [
        Finding("configuration", "absent", "no guildry.toml: defaults are in force", "guildry init")
        if file is None
        else Finding("configuration", "ok", str(file))
    ]
    if unknown := unknown_variables():
        names = ", ".join(f"`{name}`" for name in unknown)
        cure = f"unset {' '.join(unknown)}"
        findings.append(Finding("environment", "warning", f"{names} set nothing", cure))
    return findings


async def _home(home: Path) -> list[Finding]:
    there = next((path for path in (home, *home.parents) if path.exists()), Path("/"))
    if not there.is_dir():
        return [Finding("home", "failed", f"{there} is no folder", "choose another with `--home`")]
    if not os.access(there, os.W_OK | os.X_OK):
        cure = f"sudo chown -R $USER {there}, or choose another with `--home`"
        return [Finding("home", "failed", f"{there} cannot be written", cure)]
    free = shutil.disk_usage(there).free
    if free < _MIN_FREE_BYTES:
        detail = f"{there} has only {free // 2**20} MB left"
        return [Finding("home", "warning", detail, "make room, or choose another with `--home`")]
    detail = str(home) if there == home else f"{home} (made at the first start)"
    return [Finding("home", "ok", detail)]


async def _database(path: Path) -> list[Finding]:
    from guildry.memory.store import Store

    if not await anyio.Path(path).exists():
        return [Finding("database", "absent", f"{path} is made at the first start")]
    try:
        async with Store.open(path) as store:
            told: str = await store.read(
                lambda connection: connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            )
    except StoreLocked as error:
        return [Finding("database", "failed", str(error), "guildry doctor, once it has ended")]
    except GuildryError as error:
        return [Finding("database", "failed", str(error), _set_aside(path))]
    if told != "ok":
        return [Finding("database", "failed", f"{path} is damaged: {told}", _set_aside(path))]
    size = (await anyio.Path(path).stat()).st_size
    return [Finding("database", "ok", f"{path}, {size:,} bytes")]


def _set_aside(path: Path) -> str:
    return f"mv {path} {path}.damaged"


async def _program(name: str, without: str, package: str) -> list[Finding]:
    check = "bubblewrap" if name == "bwrap" else name
    where = shutil.which(name)
    if where is None:
        return [Finding(check, "absent", f"not found: {without}", _install(package))]
    done = await anyio.run_process([where, "--version"], check=False)
    version = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode or not version:
        detail = f"{where} ends with {done.returncode}"
        return [Finding(check, "warning", detail, _install(package))]
    return [Finding(check, "ok", f"{version[0]} at {where}")]


async def _sandbox(settings: "Settings") -> list[Finding]:
    """Say whether what is to be confined is, and what runs unconfined if it is not."""
    from guildry.tools.sandbox.confinement import available

    (program,) = await _program("bwrap", "no sandbox for tools", "bubblewrap")
    why = await to_thread.run_sync(available)
    if settings.sandbox == "off":
        shell = "; `run_shell` is not confined" if settings.shell else ""
        detail = f"{program.detail}; not used: `sandbox` is `off`{shell}"
        return [replace(program, status="warning", detail=detail, cure='set `sandbox = "auto"`')]
    if why is None:
        wide = "every server" if settings.sandbox == "required" else "what asks for it"
        return [replace(program, detail=f"{program.detail}; confines {wide}")]
    cure = program.cure or _MAY_CONFINE
    if settings.sandbox == "required":
        detail = f"{why}: `sandbox` is `required`, so no server runs"
        return [Finding("bubblewrap", "failed", detail, cure)]
    asking = [f"`{name}`" for name, plug in settings.plugs.items() if plug.sandbox is not None]
    asking += ["`run_shell`"] * settings.shell
    if asking:
        detail = f"{why}: only limits hold for {', '.join(asking)}"
        return [Finding("bubblewrap", "warning", detail, cure)]
    return [program if program.status == "absent" else replace(program, detail=why, cure=cure)]


def _install(package: str) -> str:
    ways = {
        "apt-get": "sudo apt-get install -y {}",
        "dnf": "sudo dnf install -y {}",
        "pacman": "sudo pacman -S {}",
        "apk": "sudo apk add {}",
        "brew": "brew install {}",
    }
    way = next((line for tool, line in ways.items() if shutil.which(tool)), "install {}")
    return way.format(package)


async def _gpu() -> list[Finding]:
    where = shutil.which("nvidia-smi")
    if where is None:
        return [Finding("gpu", "absent", "none found: models run behind a URL")]
    query = ["--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = await anyio.run_process([where, *query], check=False)
    names = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode or not names:
        return [Finding("gpu", "warning", "nvidia-smi finds none", "nvidia-smi")]
    return [Finding("gpu", "ok", "; ".join(names))]


async def _sglang() -> list[Finding]:
    from importlib.util import find_spec

    if find_spec("sglang") is None:
        cure = "pip install 'guildry[sglang]'"
        return [Finding("sglang", "absent", "not installed: no model is served here", cure)]
    return [Finding("sglang", "ok", "installed")]


async def _plugs(settings: "Settings") -> list[Finding]:
    from guildry.server.assembling import assembler_of
    from guildry.tools.plugs.board import PlugBoard
    from guildry.tools.plugs.plug import PlugLimits, Wanted
    from guildry.tools.registry import Catalog
    from guildry.tools.skills.plug import skill_folders, skill_sources

    wanted = [Wanted(plug.source, name, plug.options()) for name, plug in settings.plugs.items()]
    wanted += skill_sources(settings.skills)
    if settings.plugs_folder is not None:
        wanted.append(Wanted(f"folder:{settings.plugs_folder}", "plugs"))
    wanted += [each for each in await _kept(settings) if each.name not in settings.plugs]
    if not wanted:
        return [Finding("plugs", "absent", "none configured", "guildry plug SOURCE")]
    limits = PlugLimits(start_s=_PLUG_S, drain_s=0, sandbox=settings.sandbox)
    openers = [skill_folders(settings.folder, known={str(path) for path in settings.skills})]
    async with PlugBoard(
        Catalog(),
        openers=openers,
        folder=settings.folder,
        limits=limits,
        opening=(assembler := assembler_of(settings, None)),
    ) as board:
        assembler.board = board
        reports = await board.plug_all(wanted, patience_s=0)
        confined = {each.name: each.confinement for each in board.listing()}
    findings: list[Finding] = []
    for want, report in zip(wanted, reports, strict=True):
        check = f"plug {want.name}"
        if isinstance(report, PlugError):
            findings.append(Finding(check, "failed", report.reason, report.cure))
            continue
        for left in report.quarantined:
            detail = f"`{left.tool}` is left out: {left.reason}"
            findings.append(Finding(check, "warning", detail, f"mend it in {want.source}"))
        has = f"{len(report.skills)} skill(s)" if report.skills else f"{len(report.tools)} tool(s)"
        findings.append(_sheltered(check, f"{has} from {want.source}", confined.get(report.plug)))
    return findings


def _sheltered(check: str, detail: str, confinement: tuple[bool, str] | None) -> Finding:
    """Return the finding of a plug that is served: whether it is confined, where that is asked."""
    is_confined, why = confinement or (False, "")
    if not why or is_confined:
        return Finding(check, "ok", f"{detail}, confined" if is_confined else detail)
    cure = "see the check `bubblewrap`, or take `sandbox` out of its settings"
    return Finding(check, "warning", f"{detail}, not confined: {why}", cure)


async def _kept(settings: "Settings") -> "list[Wanted]":
    """Return the sources that were plugged by hand; none where the database cannot be read."""
    from guildry.memory.sources import SourceStore
    from guildry.memory.store import Store
    from guildry.server.by_hand import all_wanted

    if not await anyio.Path(settings.database).exists():
        return []
    try:
        async with Store.open(settings.database) as store:
            kept = await SourceStore(store).listing()
    except GuildryError:
        return []  # the check of the database says why
    return all_wanted(each for each in kept if not each.source.endswith(".toml"))


async def _packages() -> list[Finding]:
    """List what installed packages offer to be plugged."""
    from guildry.tools.plugs.entry_points import installed

    found = await to_thread.run_sync(installed)
    return [
        Finding(source, "ok", f"{value}, not plugged by itself", f"guildry plug {source}")
        for source, value in found.items()
    ]


async def _teams(settings: "Settings") -> list[Finding]:
    """Read every team file that is configured."""
    from guildry.teams.team_file import read_team

    findings: list[Finding] = []
    for path in settings.teams:
        folder = anyio.Path(path)
        files = (
            [each async for each in folder.glob("*.toml")] if await folder.is_dir() else [folder]
        )
        for file in sorted(files):
            check = f"team {file.stem}"
            try:
                team = read_team(await file.read_text(encoding="utf-8"), str(file))
            except PlugError as error:
                findings.append(Finding(check, "failed", error.reason, f"{error.cure}: {file}"))
            except (OSError, UnicodeDecodeError) as error:
                findings.append(Finding(check, "failed", str(error), "change `teams`"))
            else:
                findings.append(Finding(check, "ok", f"team_{team.name} from {file}"))
    return findings


async def _models(settings: "Settings") -> list[Finding]:
    models = dict(settings.models)
    if settings.model and settings.model not in models and settings.default_model:
        models[settings.model] = settings.default_model
    if not models:
        cure = "add [models.NAME] with `url` to guildry.toml, or give `--model URL`"
        return [Finding("models", "absent", "none configured: teams cannot work", cure)]
    found: dict[str, Finding] = {}

    async def look(name: str, model: "ModelSetting") -> None:
        found[name] = await _model(f"model {name}", model)

    async with anyio.create_task_group() as tasks:
        for name, model in models.items():
            tasks.start_soon(look, name, model)
    return [found[name] for name in models]


async def _model(check: str, model: "ModelSetting") -> Finding:
    """Ask an endpoint which models it has."""
    from guildry.server.endpoints import list_models

    if model.api_key_env and model.api_key() is None:
        detail = f"`{model.api_key_env}` is not set"
        return Finding(check, "failed", detail, f"export {model.api_key_env}=...")
    try:
        names = await list_models(model, timeout_s=_MODEL_S)
    except ModelUnavailable as error:
        return Finding(check, "failed", str(error), "start it, or change its `url`")
    except ModelRejected as error:
        cure = "set its `api_key_env`" if error.status in {401, 403} else "check its `url`"
        return Finding(check, "failed", str(error), cure)
    if model.model and names and model.model not in names:
        detail = f"{model.url} has no {model.model!r}, but {', '.join(names[:5])}"
        return Finding(check, "failed", detail, "change its `model`")
    return Finding(check, "ok", f"{model.url} serves {', '.join(names[:5]) or 'no named model'}")
