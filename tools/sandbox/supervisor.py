"""The parent of a command: keeps its limits, and ends all that came of it. Knows only the system.

A program of its own, started by path with `python -I -S`; it needs nothing but the standard
library. Every process that the command leaves behind, in whatever session, becomes its child, so
that it can end them all: when the command ends, when it is told to, and when whoever started it is
gone. Its exit is that of the command.

```text
supervisor.py [--control FD] [--memory-mb N] [--cpu-s N] [--file-mb N] [--processes N] -- COMMAND
```

Over the control socket it says `S<pid>` once the command runs or `E<errno>` if it cannot be
started, and is told `T` (ask all to end) and `K` (end all); the end of the socket is a `K` too.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from typing import Final, NoReturn

__all__ = ["main"]

_MB: Final = 1024 * 1024
_PDEATHSIG: Final = 1
_SUBREAPER: Final = 36
_GRACE_S: Final = 0.5
_WATCH_S: Final = 0.5
_KILL_S: Final = 0.002
_USAGE: Final = 64
_NOT_STARTED: Final = 127
_SANDBOX: Final = "bwrap"
_ADOPTS: Final = sys.platform == "linux"


class _Limits:
    """What one command may use. Memory counts for each process, as does processor time."""

    def __init__(self, words: list[str]) -> None:
        self.control: int | None = None
        self.memory_mb: int | None = None
        self.processes: int | None = None
        self.file_mb: int | None = None
        self.cpu_s: float | None = None
        while words:
            name, value = words.pop(0), words.pop(0)
            match name:
                case "--control":
                    self.control = int(value)
                case "--memory-mb":
                    self.memory_mb = int(value)
                case "--processes":
                    self.processes = int(value)
                case "--file-mb":
                    self.file_mb = int(value)
                case "--cpu-s":
                    self.cpu_s = float(value)
                case _:
                    raise ValueError(name)

    @property
    def watched(self) -> bool:
        """Whether there is something that the kernel does not limit by itself."""
        return self.memory_mb is not None or self.processes is not None

    def apply(self) -> None:
        """Limit this process and all that come of it."""
        if self.memory_mb is not None:  # not the address space: runtimes reserve far more of it
            _lower(resource.RLIMIT_DATA, self.memory_mb * _MB)
        if self.file_mb is not None:
            _lower(resource.RLIMIT_FSIZE, self.file_mb * _MB)
        if self.cpu_s is not None:
            _lower(resource.RLIMIT_CPU, max(1, round(self.cpu_s)), 1)
        if self.watched:
            _lower(resource.RLIMIT_CORE, 0)


def _heed(number: int, frame: object) -> None:
    """Take a signal, so that the wait for one ends."""


def _lower(kind: int, soft: int, beyond: int = 0) -> None:
    _, most = resource.getrlimit(kind)
    hard = soft + beyond
    if most != resource.RLIM_INFINITY:
        hard = min(hard, most)
    resource.setrlimit(kind, (min(soft, hard), hard))


class _Supervisor:
    def __init__(self, limits: _Limits) -> None:
        self.limits = limits
        self.libc = ctypes.CDLL(None)
        self.pid = 0
        self.status: int | None = None
        self.kill_at: float | None = None
        self.killing = False
        self.watch_at = time.monotonic() + _WATCH_S
        self.woken, waker = os.pipe()
        for end in (self.woken, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _heed)

    def prctl(self, option: int, value: int) -> None:
        """Set an attribute of this process, where the system has it."""
        if _ADOPTS:
            self.libc.prctl(option, value, 0, 0, 0)

    def start(self, command: list[str]) -> None:
        """Start the command in a session of its own; it dies should this process die."""
        parent = os.getpid()
        heard, said = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(command, parent, said)
        os.close(said)
        with os.fdopen(heard, "rb") as errors:
            failure = errors.read()
        if failure:
            self.say(b"E" + failure)
            os.waitpid(self.pid, 0)
            sys.stderr.write(f"{command[0]}: {os.strerror(int(failure))}\n")
            sys.exit(_NOT_STARTED)
        self.say(b"S%d" % self.pid)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        if not self.limits.watched:  # else it is needed to say what the command was ended for
            os.dup2(nothing, 2)
        os.close(nothing)

    def _become(self, command: list[str], parent: int, said: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # the interpreter ignores them
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            self.prctl(_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                self.limits.apply()
                os.execvp(command[0], command)
        except OSError as error:
            os.write(said, b"%d" % (error.errno or 0))
        except ValueError:
            os.write(said, b"22")
        os._exit(_NOT_STARTED)

    def say(self, line: bytes) -> None:
        """Tell whoever started this."""
        if self.limits.control is not None:
            try:
                os.write(self.limits.control, line + b"\n")
            except OSError:
                self.killing = True

    def supervise(self) -> None:
        """Wait until nothing is left of the command."""
        poll = select.poll()
        poll.register(self.woken, select.POLLIN)
        if self.limits.control is not None:
            poll.register(self.limits.control, select.POLLIN)
        while self._reap():
            now = time.monotonic()
            if self.kill_at is not None and now >= self.kill_at:
                self.killing = True
            if self.killing:
                self._kill()
            elif self.limits.watched and now >= self.watch_at:
                self.watch_at = now + _WATCH_S
                self._watch()
            for descriptor, _ in poll.poll(self._patience_ms()):
                if descriptor == self.woken:
                    self._signalled()
                else:
                    self._told(poll)

    def _patience_ms(self) -> float | None:
        if self.killing:
            return _KILL_S * 1000
        times = [] if self.kill_at is None else [self.kill_at]
        if self.limits.watched:
            times.append(self.watch_at)
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _signalled(self) -> None:
        numbers = set(os.read(self.woken, 4096))
        if numbers & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
            self._ask(_GRACE_S)

    def _told(self, poll: select.poll) -> None:
        assert self.limits.control is not None
        try:
            words = os.read(self.limits.control, 4096)
        except OSError:
            words = b""
        if not words or b"K" in words:
            self.killing = True
        elif b"T" in words:
            self._ask(None)
        if not words:
            poll.unregister(self.limits.control)

    def _ask(self, grace_s: float | None) -> None:
        """Ask every process to end; those that are there after `grace_s` are killed."""
        for pid in _below(os.getpid()):
            if _name(pid) != _SANDBOX:  # it would kill what is inside, and ends with it anyway
                _signal(pid, signal.SIGTERM)
        if grace_s is not None and self.kill_at is None:
            self.kill_at = time.monotonic() + grace_s

    def _reap(self) -> bool:
        """Bury the dead; tell whether there is a living child."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = status
                self._ask(_GRACE_S)
                if not _ADOPTS:  # its children are no longer ours: at least its group ends
                    _signal(-pid, signal.SIGKILL)

    def _kill(self) -> None:
        """Kill the command's group and every child; their children become ours, and follow."""
        if self.status is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass
        for pid in _children(os.getpid()):
            _signal(pid, signal.SIGKILL)

    def _watch(self) -> None:
        """End all if there are too many processes, or if one has too much memory."""
        pids = _below(os.getpid())
        limits = self.limits
        if limits.processes is not None and len(pids) > limits.processes + _own(pids):
            self._over(f"{len(pids)} processes, at most {limits.processes} are allowed")
        elif limits.memory_mb is not None:
            used = max((_resident_mb(pid) for pid in pids), default=0)
            if used > limits.memory_mb:
                self._over(f"{used} MB of memory, at most {limits.memory_mb} are allowed")

    def _over(self, what: str) -> None:
        try:
            os.write(2, f"ended: {what}\n".encode())
        except OSError:
            pass
        self.killing = True

    def exit(self) -> NoReturn:
        """End as the command did."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
            os.kill(os.getpid(), -code)
        os._exit(code if code >= 0 else 128 - code)


def _own(pids: list[int]) -> int:
    """Return how many of the processes are those of the sandbox itself."""
    return sum(_name(pid) == _SANDBOX for pid in pids)


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _resident_mb(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize() // _MB
    except (OSError, IndexError):
        return 0


def _children(pid: int) -> list[int]:
    """Return the children of a process, as far as the system tells."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        return found or _found_children(pid)
    except OSError:
        pass
    return found


def _found_children(of: int) -> list[int]:
    """Return the children of a process where the system keeps no list of them."""
    found: list[int] = []
    for name in os.listdir("/proc") if os.path.exists("/proc/self") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    _, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if int(parent) == of:
                found.append(int(name))
    return found


def _below(root: int) -> list[int]:
    """Return the processes below one."""
    found: list[int] = []
    waiting = _children(root)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += _children(pid)
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def main() -> NoReturn:
    """Run what the command line asks for."""
    words = sys.argv[1:]
    if "--" not in words or not words[words.index("--") + 1 :]:
        sys.stderr.write(f"{__doc__}\n")
        sys.exit(_USAGE)
    cut = words.index("--")
    limits = _Limits(words[:cut])
    if limits.control is not None:
        os.set_inheritable(limits.control, False)
    supervisor = _Supervisor(limits)
    supervisor.prctl(_SUBREAPER, 1)
    if supervisor.limits.control is None:
        supervisor.prctl(_PDEATHSIG, signal.SIGTERM)
    supervisor.start(words[cut + 1 :])
    supervisor.supervise()
    supervisor.exit()


if __name__ == "__main__":
    main()
