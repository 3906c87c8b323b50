"""Python files as plugs: their public functions are tools, or what they are declared as.

Read anew when a file is saved.
"""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import count
from pathlib import Path
from threading import get_ident
from types import CodeType, ModuleType
from typing import Any, Final

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token

from guildry.errors import PlugError
from guildry.tools.base import Tool
from guildry.tools.offers import NO_OFFERS, Offers, Prompt, Resource, Template
from guildry.tools.plugs.plug import Loaded, PlugLimits, Quarantined, Watched
from guildry.tools.python.decorators import DeclaredPrompt, DeclaredTool, declared
from guildry.tools.python.functions import UnfitFunction, tool_from
from guildry.tools.python.offers import prompt_from, resource_from
from guildry.tools.python.threads import DaemonThreads

__all__ = ["PythonPlug"]

_THREADS: Final = 32
_GENERATIONS: Final = 2
_packages = count(1)


@dataclass(frozen=True, slots=True)
class _File:
    """What one file gave, and the functions that cannot be what they are meant to be."""

    tools: tuple[Tool, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    templates: tuple[Template, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()


class _Broken(Exception):
    """Report a file that does not import: where, why, and the cure."""


class PythonPlug:
    """A Python file, or a folder of them. Public functions defined in a file are what it offers.

    Each reading imports every file under a new package of its own, so that calls in flight end on
    the module they began on. In a folder, files may import each other relatively. A file whose name
    begins with `_` is imported only by others.
    """

    def __init__(self, source: str, name: str, *, path: Path, limits: PlugLimits) -> None:
        self.kind = "python"
        self.source = source
        self.name = name
        self.watched = (Watched(path),)
        self.fault: str | None = None  # what it serves is in this process: nothing can go away
        self.touched: Callable[[str], None] = lambda uri: None
        self._path = path
        self._folder = path if path.is_dir() else path.parent
        self._start_s = limits.start_s
        self._threads = DaemonThreads(_THREADS)
        self._importing = DaemonThreads(_THREADS)
        self._good: dict[Path, _File] = {}
        self._packages: list[_Package] = []
        self._loop: tuple[int, EventLoopToken] | None = None

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Import the file or the folder.

        Raises:
            PlugError: there is no such file or folder; or a single file does not import, or holds
                nothing to offer: names file, line and error.
        """
        self._loop = (get_ident(), current_token())
        if not await anyio.Path(self._path).exists():
            raise PlugError(self.source, "there is no such file or folder", "Check the path")
        self._folder = self._path if self._path.is_dir() else self._path.parent
        self._threads = DaemonThreads(_THREADS)
        self._importing = DaemonThreads(_THREADS)
        self._good = {}
        loaded = await self._load()
        if self._path != self._folder and not loaded.tools and loaded.offers == NO_OFFERS:
            reason = "; ".join(f"`{each.tool}`: {each.reason}" for each in loaded.quarantined)
            cure = "Mend it and plug it again"
            if not reason:
                reason = "no public function is defined in it"
                cure = "Define one: `def count_words(text: str) -> int`, with a docstring"
            raise PlugError(self.source, reason, cure)
        return loaded

    async def reload(self) -> Loaded:
        """Import it anew. A file that no longer imports goes on serving as it last did."""
        return await self._load()

    async def close(self) -> None:
        """Forget the modules. Calls in flight end on the functions that they hold."""
        self._threads.close()
        self._importing.close()
        while self._packages:
            self._packages.pop().remove()

    async def _load(self) -> Loaded:
        package = _Package(self._folder)
        self._packages.append(package)
        good: dict[Path, _File] = {}
        left_out: list[Quarantined] = []
        for path in await self._importing.run(self._files):
            try:
                good[path] = await self._import(package, path)
            except _Broken as error:
                reason = str(error)
                if (last := self._good.get(path)) is not None:
                    good[path] = last
                    reason += " (its last good version goes on serving)"
                left_out.append(Quarantined(path.name, reason))
        self._good = good
        while len(self._packages) > _GENERATIONS:
            self._packages.pop(0).remove()
        left_out += [each for file in good.values() for each in file.quarantined]
        files = good.values()
        offers = Offers(
            tuple(each for file in files for each in file.prompts),
            tuple(each for file in files for each in file.resources),
            tuple(each for file in files for each in file.templates),
        )
        tools = tuple(each for file in files for each in file.tools)
        return Loaded(tools, tuple(left_out), offers)

    def _touch(self, uri: str) -> None:
        """Say that a resource has changed, from whichever thread."""
        assert self._loop is not None
        thread, token = self._loop
        if get_ident() == thread:
            self.touched(uri)
        else:
            from_thread.run_sync(self.touched, uri, token=token)

    def _files(self) -> Sequence[Path]:
        if self._path != self._folder:
            return [self._path]
        return sorted(path for path in self._path.glob("*.py") if path.name[0] not in "_.")

    async def _import(self, package: "_Package", path: Path) -> _File:
        try:
            with anyio.fail_after(self._start_s):
                return await self._importing.run(self._read, package, path)
        except TimeoutError as error:
            raise _Broken(
                f"importing it took over {self._start_s:g} s:"
                " move what is slow into the functions, or into a first call of them"
            ) from error

    def _read(self, package: "_Package", path: Path) -> _File:
        """Import one file and make tools, prompts and resources of its functions, in a thread."""
        if not path.is_file():
            raise _Broken(f"{path} is gone: put it back, or unplug it")
        if "." in path.stem:
            raise _Broken(f"{path} has a dot in its name: rename it, so that it can be imported")
        try:
            module = package.module(path.stem)
        except (Exception, SystemExit) as error:
            raise _Broken(_told(error, path)) from error
        file = _File()
        for function in _functions(module):
            try:
                file = self._with(file, function)
            except UnfitFunction as error:
                line = function.__code__.co_firstlineno
                reason = f"{path.name} line {line}: {error}"
                left_out = (*file.quarantined, Quarantined(function.__name__, reason))
                file = replace(file, quarantined=left_out)
        return file

    def _with(self, file: _File, function: Any) -> _File:
        """Return `file` with what `function` is."""
        said, name, threads = declared(function), self.name, self._threads
        if isinstance(said, DeclaredTool):
            tool = tool_from(function, plug=name, threads=threads, touch=self._touch)
            return replace(file, tools=(*file.tools, tool))
        if isinstance(said, DeclaredPrompt):
            prompt = prompt_from(function, said, plug=name, threads=threads)
            return replace(file, prompts=(*file.prompts, prompt))
        resource = resource_from(function, said, plug=name, threads=threads)
        if isinstance(resource, Resource):
            return replace(file, resources=(*file.resources, resource))
        return replace(file, templates=(*file.templates, resource))


def _functions(module: ModuleType) -> list[Any]:
    """Return the public functions that `module` defines, as its author ordered them."""
    named: list[str] | None = getattr(module, "__all__", None)
    public = None if named is None else set(named)
    return [
        value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and value.__name__ != "<lambda>"
        and (not name.startswith("_") if public is None else name in public)
    ]


def _told(error: BaseException, path: Path) -> str:
    """Say where in `path` the error is, what it is, and what to do."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    if line is None:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == str(path)), None)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    where = f"{path} line {line}" if line else str(path)
    said = f"{where}: {type(error).__name__}{f': {text}' if text else ''}"
    if isinstance(error, SystemExit):
        return f"{said}: it ends the process when it is imported; move that below `__main__`"
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and (path.parent / f"{missing}.py").is_file():
        return f"{said}: write `from . import {missing}` for the file beside it"
    return said


class _FreshLoader(SourceFileLoader):
    """Load a module from its source alone: cached bytecode may be older than a save by a second."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source as it is now."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _Package(MetaPathFinder):
    """A package made for one reading of a folder, under a name that nothing else has."""

    def __init__(self, folder: Path) -> None:
        self._name = f"guildry_plugged_{next(_packages)}"
        package = ModuleType(self._name)
        package.__path__ = [str(folder)]
        sys.modules[self._name] = package
        sys.meta_path.insert(0, self)

    def module(self, stem: str) -> ModuleType:
        """Import one file of the folder, unless another of them has done so already."""
        return importlib.import_module(f"{self._name}.{stem}")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a file or a folder with an `__init__.py` below this package."""
        if path is None or not fullname.startswith(f"{self._name}."):
            return None
        base = Path(next(iter(path))) / fullname.rpartition(".")[2]
        for file, search in ((base / "__init__.py", [str(base)]), (base.with_suffix(".py"), None)):
            if file.is_file():
                return importlib.util.spec_from_file_location(
                    fullname,
                    file,
                    loader=_FreshLoader(fullname, str(file)),
                    submodule_search_locations=search,
                )
        return None

    def remove(self) -> None:
        """Forget the modules of this reading."""
        sys.meta_path.remove(self)
        for name in [*sys.modules]:
            if name == self._name or name.startswith(f"{self._name}."):
                del sys.modules[name]
