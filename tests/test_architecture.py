"""Layers, purity and caps of `gateway/`, read off its syntax trees; tests never sleep."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.project import ROOT

LAYERS = ("cli", "server", "web pipeline", "client broker", "session", "protocol")
"""From the top. A part imports lower layers, never a neighbour; all other parts are below."""
PURE_FOLDERS = ("protocol/", "session/")
PURE_FILES = """
client/backoff client/batch client/deliveries client/error_cache client/nsqd_answers
client/nsqd_node client/node_report client/rdy client/send_time
broker/channel broker/client broker/consumer broker/handler broker/message broker/message_log
broker/discard_queue broker/scheduler broker/stats broker/topics
access/policy access/rights access/tokens access/toml_lines
web/admin/merge cli/cluster_stats cli/pub_input cli/retry token_bucket
pipeline/backlog pipeline/pending_batches pipeline/sink_rows pipeline/spool/records
"""
IMPURE = re.compile(
    r"(asyncio|datetime|logging|os|random|secrets|socket|ssl|threading|time)\b"
    r"|gateway\.(settings|telemetry)\b"
)
ONLY_IN = {"fastapi": "web/", "starlette": "web/", "pyspark": "pipeline/"}
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 900, 80, 6

Sources = dict[str, ast.Module]


def read(folder: Path) -> Sources:
    """Return every module below *folder* by its path without the suffix."""
    return {
        path.relative_to(folder).with_suffix("").as_posix(): ast.parse(path.read_text())
        for path in sorted(folder.rglob("*.py"))
    }


def imports(sources: Sources) -> Iterator[tuple[str, str]]:
    """Yield every module with each name that it imports: ``from a import b`` is ``a.b``."""
    for path, tree in sources.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                here = ["gateway", *path.split("/")][: -node.level] if node.level else []
                base = ".".join([*here, *filter(None, [node.module])])
                yield from ((path, f"{base}.{alias.name}") for alias in node.names)


def layer(part: str) -> int:
    """Return the layer of a part, counted from the top; `__main__` is above them all."""
    names = ["__main__", *LAYERS]
    return next((i for i, parts in enumerate(names) if part in parts.split()), len(names))


def upward_imports(sources: Sources) -> list[str]:
    """Return the imports of a higher layer, or of a neighbour."""
    found = []
    for path, name in imports(sources):
        part, other = path.split("/")[0], name.split(".")[1:2]
        is_own = name.startswith("gateway.") and other != [part]
        if is_own and layer(other[0]) <= min(layer(part), len(LAYERS)):
            found.append(f"{path} imports {name}")
    return found


def cycles(sources: Sources) -> list[str]:
    """Return the first cycle of modules that import each other, at run time or for types."""
    modules = {f"gateway.{path.replace('/', '.')}": path for path in sources}
    graph: dict[str, set[str]] = {path: set() for path in sources}
    for path, name in imports(sources):
        package = modules.get(f"{name.rpartition('.')[0]}.__init__")
        graph[path] |= {modules.get(name) or modules.get(name.rpartition(".")[0]) or package or ""}
        graph[path] -= {path}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def impurities(sources: Sources) -> list[str]:
    """Return where a PURE file knows the time, the network, chance, a log or a setting."""
    return [
        f"{path} imports {name}"
        for path, name in imports(sources)
        if path in PURE_FILES.split() or path.startswith(PURE_FOLDERS)
        if IMPURE.match(name)
    ]


def strangers(sources: Sources) -> list[str]:
    """Return the imports of a large library outside of the folder that may know it."""
    found = [(path, name, ONLY_IN.get(name.split(".")[0], "")) for path, name in imports(sources)]
    return [f"{path} imports {name}" for path, name, home in found if not path.startswith(home)]


def too_large(sources: Sources) -> list[str]:
    """Return the files, functions and lists of parameters above their caps."""
    found = []
    for path, tree in sources.items():
        if tree.body and (tree.body[-1].end_lineno or 0) > MAX_FILE_LINES:
            found.append(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = sum(each.arg not in {"self", "cls"} for each in given)
                is_long = (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
                if is_long or count > MAX_PARAMETERS:
                    found.append(f"{path}:{node.lineno} {node.name}")
    return found


def calls(sources: Sources, pattern: str) -> list[str]:
    """Return the calls of a function whose name matches *pattern*."""
    return [
        f"{path}:{node.lineno}"
        for path, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and re.search(pattern, ast.unparse(node.func))
    ]


def unwatched_tasks(sources: Sources) -> list[str]:
    """Return where a task is started outside of `gateway.aio` and of a TaskGroup."""
    found = calls(sources, r"(?<!group\.)\b(create_task|ensure_future)$")
    return [place for place in found if not place.startswith("aio:")]


BREAKS: dict[Callable[[Sources], list[str]], dict[str, str]] = {
    upward_imports: {"broker/server": "def f():\n    from ..web import app"},
    cycles: {"web/app": "import gateway.web.b", "web/b": "from gateway.web import app"},
    impurities: {"protocol/wire": "from os.path import join"},
    strangers: {"server/service": "import fastapi"},
    too_large: {"cli/main": "def f(a, b, c, d, e, f, g): ..."},
    unwatched_tasks: {"web/app": "loop.create_task(f())"},
}


@pytest.mark.parametrize("rule", BREAKS, ids=lambda rule: rule.__name__)
def test_gateway_keeps_a_rule_that_can_be_broken(rule: Callable[[Sources], list[str]]) -> None:
    """The rule finds what breaks it, and nothing in `gateway/`."""
    assert rule({path: ast.parse(text) for path, text in BREAKS[rule].items()})
    assert [] == rule(read(ROOT / "gateway"))


def test_no_test_sleeps_and_no_pure_file_is_missing() -> None:
    """A test waits for an event, or moves the clock."""
    assert [] == calls(read(ROOT / "tests") | read(ROOT / "verification"), r"\bsleep$")
    assert read(ROOT / "gateway").keys() >= set(PURE_FILES.split())
