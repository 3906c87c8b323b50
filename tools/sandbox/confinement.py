"""Confinement: a command made into one that cannot do more than it was granted. Runs nothing.

Where bubblewrap works, the command sees the system's programs read-only, a private `/tmp` and home,
the folders that it was given, and no network unless granted; it is alone with its processes. In any
case it is limited in processor time, memory, processes and sizes of files, and leaves none behind.
"""

import errno
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from guildry.errors import SandboxError
from guildry.tools.plugs.options import SandboxOptions, SandboxPolicy
from guildry.tools.sandbox.visible import SYSTEM, SYSTEM_FILES, needed, unseen

__all__ = [
    "Confined",
    "Verdict",
    "available",
    "confined",
    "supervised",
    "told_confinement",
    "verdict",
    "wanted_sandbox",
]

_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
_PROBE_S: Final = 10.0
_MB: Final = 1024 * 1024
_PRIVATE: Final = "/tmp"
_COUNTED_BY_NAMESPACE: Final = (5, 14)
_OWN_PROCESSES: Final = 2


@dataclass(frozen=True, slots=True)
class Confined:
    """A command as it is run, so that its limits are kept.

    Args:
        inner: the command within the sandbox, if there is one.
        limits: what the supervisor is told.
        env: all variables that it gets.
        is_confined: whether a sandbox is around it; if not, only the limits hold.
        notes: what whoever reads the log of it should know.
    """

    inner: tuple[str, ...]
    limits: tuple[str, ...]
    env: Mapping[str, str]
    is_confined: bool
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command: when it or whoever started it ends, all of its processes do."""
        return supervised(self.inner, self.limits)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a plug's process is confined, and why, in a few words."""

    confined: bool
    why: str


def supervised(
    command: Sequence[str], limits: Sequence[str] = (), *, control: int | None = None
) -> tuple[str, ...]:
    """Return a command whose processes end with it, and with whoever started it.

    Args:
        command: what is run.
        limits: as `Confined.limits`.
        control: the socket over which it is told to end.
    """
    told = () if control is None else ("--control", str(control))
    return (sys.executable, "-I", "-S", str(_SUPERVISOR), *told, *limits, "--", *command)


@functools.cache
def available() -> str | None:
    """Return why no sandbox can be made here, or None where one can.

    The first call runs one, which takes some 10 ms: make it in a thread.
    """
    if sys.platform != "linux":
        return "bubblewrap runs on Linux alone"
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    probe = [program, "--unshare-all", "--die-with-parent", *_system(), "--proc", "/proc"]
    try:
        done = subprocess.run(
            [*probe, "--dev", "/dev", "true"], capture_output=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be run ({error})"
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines() or [f"{done.returncode}"]
    return f"bubblewrap may not make a sandbox here ({said[-1]})"


def wanted_sandbox(options: SandboxOptions | None, policy: SandboxPolicy) -> SandboxOptions | None:
    """Return how a server's process is to be confined, or None if it is not."""
    if policy == "off":
        return None
    return options or (SandboxOptions() if policy == "required" else None)


def verdict(options: SandboxOptions | None, policy: SandboxPolicy) -> Verdict:
    """Tell whether a server's process is confined, and why."""
    if wanted_sandbox(options, policy) is None:
        return Verdict(False, "`sandbox` is `off`" if policy == "off" else "it is not asked for")
    missing = available()
    if missing is not None:
        held = "it does not run" if policy == "required" else "only its limits hold"
        return Verdict(False, f"{missing}: {held}")
    return Verdict(True, "`sandbox` is `required`" if options is None else "as its options say")


def told_confinement(options: SandboxOptions | None, policy: SandboxPolicy) -> tuple[bool, str]:
    """Return whether a process is confined, and why; empty where nobody asked for it."""
    found = verdict(options, policy)
    asked = options is not None or policy == "required"
    return found.confined, found.why if asked else ""


def confined(
    command: Sequence[str],
    options: SandboxOptions,
    *,
    cwd: Path,
    env: Mapping[str, str],
    policy: SandboxPolicy = "auto",
) -> Confined:
    """Return a command as it is run confined. Looks at files: call it in a thread.

    Args:
        command: its words.
        options: what it may do.
        cwd: where it runs, and where relative paths begin; seen within only if granted.
        env: every variable that it gets; its folders for temporary files are replaced.
        policy: whether it may run without a sandbox.

    Raises:
        FileNotFoundError: there is no such command.
        SandboxError: it cannot be confined as it must be, or is granted what is not there.
    """
    program = str(cwd / command[0]) if "/" in command[0] else command[0]
    if shutil.which(program, path=env.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    limits = tuple(_limits(options))
    missing = available()
    if missing is not None:
        if policy == "required":
            cure = "mend that, or set `sandbox` to `auto` to run it with limits alone"
            raise SandboxError(f"`{command[0]}` cannot be confined ({missing}): {cure}")
        return Confined(tuple(command), limits, env, False, (f"{missing}: only limits hold",))
    shelter = _Shelter(tuple(command), options, cwd, env)
    return Confined(shelter.command(), limits, shelter.env, True, shelter.notes())


def _limits(options: SandboxOptions) -> Iterator[str]:
    yield from ("--memory-mb", str(options.memory_mb), "--processes", str(options.processes))
    yield from ("--file-mb", str(options.file_mb))
    if options.cpu_s is not None:
        yield from ("--cpu-s", str(options.cpu_s))


def _system() -> Iterator[str]:
    """Give the words that show the system's programs and libraries, read-only."""
    for folder in SYSTEM:
        if os.path.islink(folder):
            yield from ("--symlink", os.readlink(folder), folder)
        elif os.path.isdir(folder):
            yield from ("--ro-bind", folder, folder)


class _Shelter:
    """The sandbox of one command, as bubblewrap takes it."""

    def __init__(
        self,
        inner: tuple[str, ...],
        options: SandboxOptions,
        cwd: Path,
        env: Mapping[str, str],
    ) -> None:
        self._inner, self._options, self._cwd = inner, options, cwd.absolute()
        home = env.get("HOME", "")
        self._home = Path(home if home.startswith("/") and home != "/" else _PRIVATE)
        private = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), _PRIVATE)
        self.env = {**env, "HOME": str(self._home), **private}
        self._write = self._granted("write", options.write)
        self._read = self._granted("read", options.read)
        path = env.get("PATH", os.defpath)
        self._needed = needed(inner, cwd=self._cwd, path=path, home=self._home)

    def command(self) -> tuple[str, ...]:
        words = [
            shutil.which("bwrap") or "bwrap",
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
        ]
        words += ["--cap-drop", "ALL", "--hostname", "sandbox"]
        if self._options.network:
            words.append("--share-net")
        words += _system()
        for file in SYSTEM_FILES:
            words += ["--ro-bind-try", file, file]
        words += self._resolver()
        words += ["--proc", "/proc", "--remount-ro", "/proc"]  # the superuser owns knobs in there
        words += ["--dev", "/dev"]
        room = str(self._options.file_mb * _MB)
        for folder in dict.fromkeys(("/dev/shm", _PRIVATE, str(self._home))):
            words += ["--size", room, "--tmpfs", folder]
        words += self._folders()
        words += ["--dir", str(self._cwd), "--chdir", str(self._cwd), "--remount-ro", "/", "--"]
        return (*words, *self._counted(), *self._inner)

    def notes(self) -> tuple[str, ...]:
        """Return what of the command line is not seen inside, which is easily forgotten."""
        seen = (*self._needed, *self._read, *self._write)
        return tuple(
            f"`{each}` is not seen in the sandbox: add it to `read` or `write`"
            for each in unseen(self._inner, cwd=self._cwd, seen=seen)
        )

    def _granted(self, kind: str, names: Sequence[str]) -> tuple[Path, ...]:
        paths = tuple(self._cwd / os.path.expanduser(name) for name in names)
        for path in paths:
            if not path.exists():
                raise SandboxError(
                    f"`{kind}` of the sandbox names {str(path)!r}, which is not there: make it, or"
                    f" take it out of `{kind}`"
                )
        return tuple(Path(os.path.normpath(path)) for path in paths)

    def _resolver(self) -> list[str]:
        """Return the words that show how names are looked up, which is often a link into `/run`."""
        if not self._options.network:
            return []
        file = os.path.realpath("/etc/resolv.conf")
        return ["--ro-bind-try", file, "/etc/resolv.conf"]

    def _folders(self) -> list[str]:
        """Return the words that show what was granted; what is inside a folder comes after it."""
        shown = dict.fromkeys(self._needed, "--ro-bind-try")
        shown |= dict.fromkeys(self._read, "--ro-bind")
        shown |= dict.fromkeys(self._write, "--bind")
        words: list[str] = []
        for path in sorted(shown, key=lambda each: len(each.parts)):
            words += [shown[path], str(path), str(path)]
        return words

    def _counted(self) -> tuple[str, ...]:
        """Return the words that let the kernel count processes, where it does so for a sandbox.

        Elsewhere, and for the superuser, whom it never limits, the supervisor counts.
        """
        version = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
        program = shutil.which("prlimit", path="/usr/bin:/bin")
        if program is None or os.geteuid() == 0 or version < _COUNTED_BY_NAMESPACE:
            return ()
        most = self._options.processes + _OWN_PROCESSES
        return (program, f"--nproc={most}:{most}", "--")
