"""
The rules of the house, read off the syntax tree: each rule is a function from Sources to findings.

A finding is one line of text, ``path:line what is wrong``; no finding means that the rule holds.
Rules see text only, so that a test can plant a violation and see that the rule finds it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = "gateway"

# A part may import from lower levels and from itself; neighbours do not know each other.
LEVELS = {
    "__main__": 7,
    "cli": 6,
    "workers": 5.5,
    "service": 5,
    "commands": 5,
    "planes": 4.5,
    "process_account": 4.2,
    "bounds": 4.2,
    "web": 4,
    "pipeline": 4,
    "nsqd_access": 3.5,
    "client": 3,
    "broker": 3,
    "session": 2,
    "settings_limits": 2,
    "protocol": 1,
    # Level 0 has an order of its own.
    "drain_account": 0.4,
    "lifetime": 0.4,
    "phase": 0.4,
    "listener": 0.4,
    "certificate": 0.35,
    "garbage": 0.4,
    "open_files": 0.4,
    "settings_sources": 0.4,
    "settings_kinds": 0.38,
    "settings": 0.3,
    "settings_commands": 0.3,
    "telemetry": 0.3,
    "settings_nsqd": 0.2,
    "settings_pipeline": 0.3,
    "settings_replay": 0.36,
    "settings_sink": 0.35,
    "settings_jobs": 0.35,
    "settings_publish": 0.2,
    "settings_telemetry": 0.2,
    "settings_public": 0.25,
    "settings_common": 0.1,
    "secret_file": 0.1,
    "bearer": 0.1,
    "addresses": 0,
    "after_reads": 0,
    "file_stamp": 0,
    "words": 0,
    "tls_versions": 0,
    "errors": 0,
    "secret": 0,
    "__init__": -1,  # the version
}

# PURE: events in, values out. Time comes as `now`, randomness as a callable, limits as values.
PURE = (
    "protocol/",
    "session/",
    "secret.py",
    "bearer.py",
    "commands/framing.py",
    "commands/retries.py",
    "client/backoff.py",
    "client/ready.py",
    "client/consumption.py",
    "client/delivery.py",
    "client/refusals.py",
    "client/choice.py",
    "client/node.py",
    "client/lookup_answers.py",
    "client/node_answers.py",
    "client/channel_stats.py",
    "client/batch.py",
    "pipeline/depth_account.py",
    "pipeline/goal.py",
    "pipeline/ledger.py",
    "pipeline/spool_records.py",
    "broker/agenda.py",
    "broker/common.py",
    "broker/consumer.py",
    "broker/client.py",
    "broker/message.py",
    "broker/channel.py",
    "broker/options.py",
    "broker/stats.py",
    "broker/topic.py",
    "broker/catalog.py",
    "broker/handler.py",
    "web/node_reports.py",
    "web/quota.py",
    "pipeline/sink_rows.py",
)
IMPURE_MODULES = (
    "asyncio",
    "datetime",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "ssl",
    "threading",
    "time",
    "gateway.settings",
    "gateway.settings_common",
    "gateway.settings_nsqd",
    "gateway.settings_publish",
    "gateway.settings_public",
    "gateway.telemetry",
)

# The only folder that may import the library.
HOME_OF = {"fastapi": "web/", "starlette": "web/", "pyspark": "pipeline/"}

# `group.create_task` of a TaskGroup is fine: the group waits for its tasks.
STARTS_A_TASK = re.compile(r"(?<!group\.)\b(create_task|ensure_future)$")
MAY_START_TASKS = "telemetry/tasks.py"

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_PARAMETERS = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One Python file: *path* inside its root folder, with forward slashes, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text, self.path)

    @property
    def module(self) -> str:
        """The dotted name: ``web/app.py`` is gateway.web.app, a package's door is the package."""
        parts = self.path.removesuffix(".py").split("/")
        return ".".join([PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)])

    @property
    def part(self) -> str:
        """The top-level part that the file belongs to: ``web``, ``cli``, ``__init__``."""
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def is_pure(self) -> bool:
        """Whether the file is one of the PURE ones."""
        return self.path.startswith(PURE)

    @property
    def functions(self) -> Iterator[Function]:
        """Every function and method, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def finding(self, node: ast.AST, what: str) -> str:
        """Return one line that names the place and what is wrong there."""
        return f"{self.path}:{getattr(node, 'lineno', 1)} {what}"


Sources = list[Source]
Rule = Callable[[Sources], list[str]]


def read(root: Path) -> Sources:
    """Return every Python file below *root*, in order of path."""
    return [
        Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.py"))
    ]


def levels(sources: Sources) -> list[str]:
    """Imports inside the package go down or stay in their part."""
    findings = [
        source.finding(source.tree, f"{source.part} is on no level")
        for source in sources
        if source.part not in LEVELS
    ]
    known = [source for source in sources if source.part in LEVELS]
    for source in known:
        for node, target in _own_imports(source, sources):
            part = _part_of(target)
            downward = LEVELS.get(part, 99) < LEVELS[source.part]
            if not (downward or part == source.part):
                findings.append(source.finding(node, f"{source.part} imports {target}"))
    return findings


def purity(sources: Sources) -> list[str]:
    """PURE files know no time, no network, no randomness, no settings and no log."""
    return [
        source.finding(node, f"a PURE file imports {name}")
        for source in sources
        if source.is_pure
        for node, name in _imports(source)
        if _is_within(name, IMPURE_MODULES)
    ]


def homes(sources: Sources) -> list[str]:
    """Each large library is imported in one folder only."""
    return [
        source.finding(node, f"{library} is for {home} only")
        for source in sources
        for node, name in _imports(source)
        for library, home in HOME_OF.items()
        if _is_within(name, (library,)) and not source.path.startswith(home)
    ]


def cycles(sources: Sources) -> list[str]:
    """No module imports itself by way of others."""
    graph = {
        source.module: {target for _, target in _own_imports(source, sources)} - {source.module}
        for source in sources
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return ["import cycle: " + " -> ".join(reversed(error.args[1]))]
    return []


def caps(sources: Sources) -> list[str]:
    """No file, function or list of parameters is longer than its cap."""
    findings = []
    for source in sources:
        if (lines := len(source.text.splitlines())) > MAX_FILE_LINES:
            findings.append(source.finding(source.tree, f"{lines} lines (cap {MAX_FILE_LINES})"))
        methods = _methods(source)
        for function in source.functions:
            lines = (function.end_lineno or 0) - function.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                what = f"{function.name} has {lines} lines (cap {MAX_FUNCTION_LINES})"
                findings.append(source.finding(function, what))
            if (count := _parameters(function, bound=function in methods)) > MAX_PARAMETERS:
                what = f"{function.name} takes {count} parameters (cap {MAX_PARAMETERS})"
                findings.append(source.finding(function, what))
    return findings


def tasks(sources: Sources) -> list[str]:
    """Tasks are started in one place, where their failures are seen, or in a TaskGroup."""
    return [
        source.finding(node, f"starts a task outside {MAY_START_TASKS}")
        for source in sources
        if source.path != MAY_START_TASKS
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and STARTS_A_TASK.search(ast.unparse(node.func))
    ]


def docstrings(sources: Sources) -> list[str]:
    """Every public module, class, function and method says what is true of it."""
    return [
        source.finding(node, f"{name} has no docstring")
        for source in sources
        for name, node in _public(source)
        if ast.get_docstring(node) is None
    ]


def waiting(sources: Sources) -> list[str]:
    """Nothing sleeps: a test waits for an event, or moves the clock."""
    return [
        source.finding(node, "sleeps")
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and re.search(r"\bsleep$", ast.unparse(node.func))
    ]


def facts(sources: Sources) -> list[str]:
    """Every test states its fact in the first line of its docstring."""
    return [
        source.finding(function, f"{function.name} states no fact")
        for source in sources
        for function in source.functions
        if function.name.startswith("test_") and not _is_sentence(ast.get_docstring(function))
    ]


def _is_sentence(docstring: str | None) -> bool:
    """Whether *docstring* begins with something that ends in a full stop."""
    return docstring is not None and docstring.split("\n\n")[0].endswith(".")


def _imports(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Yield every imported name in full: ``from a import b`` is a.b; relative ones resolved."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = f"{PACKAGE}/{source.path}".split("/")[: -node.level]
                base = ".".join([*inside, *([base] if base else [])])
            yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def _own_imports(source: Source, sources: Sources) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the modules of the package that *source* imports, as the longest name that exists."""
    modules = {other.module for other in sources}
    for node, name in _imports(source):
        if _is_within(name, (PACKAGE,)):
            yield node, _longest_known(name, modules)


def _longest_known(name: str, modules: set[str]) -> str:
    """Shorten *name*, from class to module to package, until it is a module."""
    while name not in modules and "." in name:
        name = name.rpartition(".")[0]
    return name


def _part_of(module: str) -> str:
    """Return the top-level part of a module of the package."""
    return module.split(".")[1] if "." in module else "__init__"


def _is_within(name: str, modules: tuple[str, ...]) -> bool:
    """Whether *name* is one of *modules* or something inside one of them."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _methods(source: Source) -> set[ast.stmt]:
    """Return the functions whose first parameter is self or cls."""
    return {
        member
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, Function)
        and not any(ast.unparse(mark) == "staticmethod" for mark in member.decorator_list)
    }


def _parameters(function: Function, *, bound: bool) -> int:
    """Count what a caller can give; self and cls are not given."""
    arguments = function.args
    named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return named + (arguments.vararg is not None) + (arguments.kwarg is not None) - bound


def _public(source: Source) -> Iterator[tuple[str, ast.Module | ast.ClassDef | Function]]:
    """Yield the module, and public classes and functions outside of functions, by name."""
    yield source.module, source.tree
    waiting_for: list[ast.Module | ast.ClassDef] = [source.tree]
    while waiting_for:
        for node in waiting_for.pop().body:
            if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
                continue
            if any(ast.unparse(mark).endswith("overload") for mark in node.decorator_list):
                continue
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                waiting_for.append(node)
