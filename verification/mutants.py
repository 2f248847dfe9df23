"""
Count how many random faults in the code the tests find (mutation testing).

`make mutants` draws faults ("mutants") from the syntax trees of gateway/protocol, session, client
and web. Each is written into a copy of the project, never into the working tree. Tests run until
one fails: first those in the mirrored files (gateway/client/rdy.py: tests/unit/client/test_rdy*.py)
that run the line, then the others of tests/unit that run it, at last the files of tests/e2e for the
folder, and those of tests/witness where nsqd is there. A mutant that passes them all has survived,
also one whose line no test runs. A test that exceeds its time limit has failed; a pytest that ends
twice without naming a test leaves the mutant undecided.

A first run of tests/unit finds which test runs which line; `--map` keeps the result. The last lines
name each survivor, to be tried again with `--only` after a test is added.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, NoReturn

import coverage
import hypothesis
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("protocol", "session", "client", "web")
MEMORY_LIMIT_BYTES = 2 << 30
"""For each process of the tests: an endless loop may also fill memory."""
UNIT_TEST_LIMIT_S = 30
E2E_TEST_LIMIT_S = 60
MEASURE_LIMIT_S = 3600.0
START_S = 30.0
"""Allowed for starting pytest, beside what the tests take."""

# The tests through sockets that are most likely to notice a fault in the folder.
E2E = {
    "gateway/protocol": ("client/test_consumer.py", "test_delivery.py"),
    "gateway/session": (
        "test_bad_commands.py",
        "test_contract_socket.py",
        "test_requeue_on_close.py",
        "test_socket_publish.py",
    ),
    "gateway/client": ("client", "test_broker_outage.py", "test_delivery.py"),
    "gateway/web": ("test_caller_identity.py", "test_http_errors.py", "test_openapi.py"),
    "gateway/web/admin": ("test_admin_wiring.py", "test_openapi.py"),
    "gateway/web/http": (
        "test_browser_publish.py",
        "test_contract.py",
        "test_http_errors.py",
        "test_tracing.py",
    ),
    "gateway/web/site": ("web/site", "test_static_pages.py"),
    "gateway/web/subscribe": (
        "test_channel_sharing.py",
        "test_contract_socket.py",
        "test_delivery.py",
        "test_drain.py",
        "test_slow_reader.py",
    ),
    "gateway/web/websocket": ("rfc6455", "test_delivery.py"),
}
# Those beside nsqd.
WITNESS = {
    "gateway/protocol": ("protocol", "client"),
    "gateway/client": ("client", "test_auth.py", "test_discovery.py"),
    "gateway/web/http": ("test_http_promises.py",),
}


# ---- Mutants -----------------------------------------------------------------------------------


class Mutant(NamedTuple):
    """One change of one file: the bytes from *start* to *end* become *text*."""

    path: str
    """From the root of the project, with slashes."""
    operator: str
    line: int
    statement: tuple[int, int]
    """The first and last line of the statement, or of its head."""
    at_import: bool
    """The line runs when the module is imported."""
    start: int
    end: int
    text: bytes

    @property
    def name(self) -> str:
        """What `--only` takes; the same as long as the file is the same."""
        return f"{self.path}:{self.line}:{self.start}:{self.operator}"

    def apply(self, source: bytes) -> bytes:
        """Return the changed file."""
        return source[: self.start] + self.text + source[self.end :]

    def diff(self, source: bytes) -> str:
        """Return the removed and the added lines."""
        before, after = source.decode(), self.apply(source).decode()
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))


_COMPARISONS: dict[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.Lt: (rb"<", b"<="),
    ast.LtE: (rb"<=", b"<"),
    ast.Gt: (rb">", b">="),
    ast.GtE: (rb">=", b">"),
    ast.Eq: (rb"==", b"!="),
    ast.NotEq: (rb"!=", b"=="),
    ast.Is: (rb"\bis\b", b"is not"),
    ast.IsNot: (rb"\bis\s+not\b", b"is"),
    ast.In: (rb"\bin\b", b"not in"),
    ast.NotIn: (rb"\bnot\s+in\b", b"in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[bytes, bytes]] = {
    ast.Add: (rb"\+", b"-"),
    ast.Sub: (rb"-", b"+"),
    ast.Mult: (rb"\*", b"//"),
    ast.Div: (rb"/", b"*"),
    ast.FloorDiv: (rb"//", b"*"),
    ast.Mod: (rb"%", b"//"),
    ast.LShift: (rb"<<", b">>"),
    ast.RShift: (rb">>", b"<<"),
    ast.BitAnd: (rb"&", b"|"),
    ast.BitOr: (rb"\|", b"&"),
}
_TYPE_CALLS = frozenset({"NewType", "ParamSpec", "TypeVar", "cast", "isinstance", "issubclass"})
_NOT_CODE = frozenset({"__all__", "__slots__", "__match_args__"})


class MutantFinder(ast.NodeVisitor):
    """
    Collect the mutants of one file.

    Texts, docstrings, type annotations and `__slots__` are left as they are.
    """

    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._statement = (1, 1)
        self._depth = 0

    def visit(self, node: ast.AST) -> None:
        """Look at a node, then at its children."""
        around = self._statement
        if isinstance(node, ast.stmt):
            self._statement = (node.lineno, _last_line_of_head(node))
        super().visit(node)
        self._statement = around

    # What is left as it is

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts; Python 3.11 has wrong positions inside of them, too."""

    def visit_arg(self, node: ast.arg) -> None:
        """Leave annotations of parameters."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Look at the value only; the name of a type is not code."""
        if node.value is None or "TypeAlias" in ast.unparse(node.annotation):
            return
        self._drop(node, node.target)
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Drop a change of state; a local name that is missing would be found by any test."""
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id in _NOT_CODE:
            return
        self._drop(node, node.targets[0])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Leave types among the arguments."""
        name = getattr(node.func, "id", None)
        if name in _TYPE_CALLS:
            self.visit(node.args[1 if name == "cast" else 0])
        else:
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Look at everything but the type of the result."""
        for each in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if each is not None:
                self.visit(each)
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Its body runs later."""
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    # What is changed

    def visit_If(self, node: ast.If) -> None:
        """Negate the condition."""
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._negate(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Negate the condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Negate the condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Negate the conditions."""
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Move or turn round the boundary."""
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            pattern, text = _COMPARISONS[type(operator)]
            self._replace_between(left, right, pattern, text, "comparison")
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Swap `and` and `or`."""
        pattern, text = (
            (rb"\band\b", b"or") if isinstance(node.op, ast.And) else (rb"\bor\b", b"and")
        )
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._replace_between(left, right, pattern, text, "and/or")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Swap arithmetic; outside of functions `|` is that of types."""
        if type(node.op) in _ARITHMETIC and (self._depth or not isinstance(node.op, ast.BitOr)):
            pattern, text = _ARITHMETIC[type(node.op)]
            self._replace_between(node.left, node.right, pattern, text, "arithmetic")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Swap arithmetic, or drop it."""
        if type(node.op) in _ARITHMETIC:
            pattern, text = _ARITHMETIC[type(node.op)]
            self._replace_between(node.target, node.value, pattern, text, "arithmetic")
        self._drop(node, None)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add and subtract one."""
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            for value, operator in ((node.value + 1, "constant+1"), (node.value - 1, "constant-1")):
                self._replace(node, (f"({value!r})" if value < 0 else repr(value)), operator)

    def visit_Return(self, node: ast.Return) -> None:
        """Return a constant in place of the value."""
        if node.value is None:
            self._drop(node, None)
            return
        value = node.value.value if isinstance(node.value, ast.Constant) else ...
        if isinstance(value, bool):
            self._replace(node.value, repr(not value), "return")
        elif value is not None:
            self._replace(node.value, "None", "return")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Drop a call; a docstring stays."""
        if not isinstance(node.value, ast.Constant):
            self._drop(node, None)
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Drop the statement."""
        self._drop(node, None)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        """Drop the statement."""
        self._drop(node, None)

    def visit_Continue(self, node: ast.Continue) -> None:
        """Drop the statement."""
        self._drop(node, None)

    def visit_Break(self, node: ast.Break) -> None:
        """Drop the statement."""
        self._drop(node, None)

    def _drop(self, node: ast.stmt, target: ast.expr | None) -> None:
        if self._depth and not isinstance(target, ast.Name):
            self._replace(node, "pass", "drop")

    def _negate(self, test: ast.expr) -> None:
        self._replace(test, f"(not ({self._text(test)}))", "negate")

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _replace(self, node: ast.stmt | ast.expr, text: str, operator: str) -> None:
        self._add(node.lineno, *self._span(node), text.encode(), operator)

    def _replace_between(
        self, left: ast.expr, right: ast.expr, pattern: bytes, text: bytes, operator: str
    ) -> None:
        start, end = self._span(left)[1], self._span(right)[0]
        match = re.search(pattern, self._source[start:end])
        if match is not None:
            line = left.end_lineno or left.lineno
            self._add(line, start + match.start(), start + match.end(), text, operator)

    def _add(self, line: int, start: int, end: int, text: bytes, operator: str) -> None:
        mutant = Mutant(
            self._path, operator, line, self._statement, self._depth == 0, start, end, text
        )
        self.found.append(mutant)


def _last_line_of_head(node: ast.stmt) -> int:
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if body:
        first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
        return max(node.lineno, first.lineno - 1)
    return node.end_lineno or node.lineno


def find_mutants(root: Path, folders: Sequence[str] = FOLDERS) -> list[Mutant]:
    """Return all mutants of the folders, in the order of the files."""
    found: list[Mutant] = []
    for path in sorted(
        path for folder in folders for path in (root / "gateway" / folder).rglob("*.py")
    ):
        source = path.read_bytes()
        finder = MutantFinder(path.relative_to(root).as_posix(), source)
        finder.visit(ast.parse(source))
        found += finder.found
    return found


def changes_the_program(mutant: Mutant, source: bytes) -> bool:
    """Return whether the mutant is a program, and another one."""
    try:
        changed = ast.parse(mutant.apply(source))
        compile(changed, mutant.path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


def draw(root: Path, mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return *count* of the mutants, at random."""
    shuffled = random.Random(seed).sample(mutants, len(mutants))  # reproducible
    drawn: list[Mutant] = []
    for mutant in shuffled:
        if len(drawn) == count:
            break
        if changes_the_program(mutant, (root / mutant.path).read_bytes()):
            drawn.append(mutant)
    return drawn


# ---- Tests -------------------------------------------------------------------------------------


@dataclass
class CoverageMap:
    """Which test of tests/unit runs which line, and how long each test takes."""

    data: coverage.CoverageData
    durations: dict[str, float | None]
    """In seconds; None for a test that fails without a mutant."""
    _tests: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> CoverageMap:
        """Read what `measure` has written."""
        data = coverage.CoverageData(str(folder / "coverage"))
        data.read()
        return cls(data, json.loads((folder / "durations.json").read_text()))

    def tests_of(self, mutant: Mutant) -> set[str]:
        """Return the tests that run the statement; for a line of an import, those of the module."""
        lines = self._tests_by_line(mutant.path)
        first, last = mutant.statement
        wanted = range(first, last + 1)
        if mutant.at_import or any("" in lines.get(line, ()) for line in wanted):
            wanted = range(1, max(lines, default=0) + 1)
        found = set().union(*(lines.get(line, ()) for line in wanted))
        return found & self.passing()

    def passing(self) -> set[str]:
        """Return the tests that pass without a mutant."""
        return {test for test, duration_s in self.durations.items() if duration_s is not None}

    def _tests_by_line(self, path: str) -> dict[int, set[str]]:
        if path not in self._tests:
            measured = [name for name in self.data.measured_files() if name.endswith("/" + path)]
            self._tests[path] = {
                line: {context.rpartition("|")[0] for context in contexts}
                for name in measured
                for line, contexts in self.data.contexts_by_lineno(name).items()
            }
        return self._tests[path]

    def cheapest(self, tests: set[str], limit_s: float) -> list[str]:
        """Return the tests in order of what they take, up to *limit_s* in all."""
        chosen, total_s = [], 0.0
        for test in sorted(tests, key=lambda test: (self.durations[test] or 0.0, test)):
            total_s += self.durations[test] or 0.0
            if total_s > limit_s:
                break
            chosen.append(test)
        return chosen

    def duration_s(self, tests: Sequence[str]) -> float:
        """Return what the tests take together."""
        return sum(self.durations.get(test) or 0.0 for test in tests)


class Verdict(StrEnum):
    """What the tests say of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    UNDECIDED = "undecided"
    """No test failed, but pytest ended without a result, twice; not counted as killed."""


class Result(NamedTuple):
    """What the tests say of a mutant, and which of them."""

    verdict: Verdict
    reason: str
    """The stage and its test that failed, or how pytest ended; empty if the mutant survived."""


class Copy:
    """A copy of the project, in which one file at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, target)
        if (ROOT / "tools" / "bin").exists():
            (self.root / "tools" / "bin").symlink_to(ROOT / "tools" / "bin")
        self._plan = folder / "plan.json"

    def measure(self, folder: Path) -> None:
        """Run tests/unit, and write into *folder* which test runs which line."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "coverage").unlink(missing_ok=True)
        command = ["--cov=gateway", "--cov-context=test", "--cov-report=", "-m", "not nsqd"]
        command += [f"--timeout={E2E_TEST_LIMIT_S}", "tests/unit"]
        where = {
            "COVERAGE_FILE": str(folder / "coverage"),
            "MUTANTS_DURATIONS": str(folder / "durations.json"),
        }
        self._pytest(command, where, MEASURE_LIMIT_S)

    def try_one(self, mutant: Mutant, stages: Sequence[Stage]) -> Result:
        """Run the stages with the mutant in place until one of their tests fails."""
        path = self.root / mutant.path
        source, stat = path.read_bytes(), path.stat()
        path.write_bytes(mutant.apply(source))
        try:
            undecided = ""
            for stage in stages:
                test, end = self._run(stage)
                if not test and end:
                    # A busy machine can make tests slow: only what happens twice is the mutant's.
                    test, end = self._run(stage)
                if test:
                    return Result(Verdict.KILLED, f"{stage.name}: {test}")
                undecided = undecided or (f"{stage.name}: {end}" if end else "")
            return Result(Verdict.UNDECIDED if undecided else Verdict.SURVIVED, undecided)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _run(self, stage: Stage) -> tuple[str, str]:
        """Return the test that failed, and how pytest ended without one; both empty if none did."""
        if not stage.files:
            return "", ""
        self._plan.write_text(json.dumps(stage.plan))
        marked = "nsqd" if stage.name == "witness" else "not nsqd"
        command = ["-x", f"--timeout={stage.test_limit_s}", "-m", marked, *stage.files]
        status, output = self._pytest(
            command,
            {"MUTANTS_PLAN": str(self._plan)},
            # Longer than one test may take: pytest has to name the test that does not end.
            START_S + stage.test_limit_s + 4 * stage.duration_s,
        )
        if status in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            return "", ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", output, re.MULTILINE)
        if failed:
            return failed[1], ""
        return (
            "",
            "time limit" if status is None else f"pytest ended with {status}: {output[-300:]}",
        )

    def _pytest(
        self, arguments: Sequence[str], environment: dict[str, str], limit_s: float
    ) -> tuple[int | None, str]:
        output = self._plan.with_name("output")
        process = os.fork()
        if process == 0:
            _become_pytest(self.root, output, [*arguments, *_OPTIONS], environment)
        handle = os.pidfd_open(process)
        ended, _, _ = select.select([handle], [], [], limit_s)
        os.close(handle)
        # What the tests have started is in their process group, and ends with them.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        return (status if ended else None), output.read_text(errors="replace")


_OPTIONS = (
    *("-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:randomly"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)


def _become_pytest(
    root: Path, output: Path, arguments: Sequence[str], environment: dict[str, str]
) -> NoReturn:
    """Run pytest in this process, a fork: other packages have been imported for it already."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(root)
    os.environ.update(environment, HYPOTHESIS_PROFILE="mutants", PYTHONPATH=str(root))
    # The file changes faster than its time stamp: a stale .pyc would hide a mutant.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(root))
    status = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        status = int(pytest.main([*arguments, "-p", "verification.mutants"]))
    except BaseException:  # noqa: BLE001  # a fork must not return
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Stage(NamedTuple):
    """Tests that run in one process."""

    name: str
    files: list[str]
    plan: dict[str, list[str]] | None
    """The tests in *files* to run, in order, and those that are not new; None for all."""
    duration_s: float
    test_limit_s: int


def mirrored_files(root: Path, path: str, tier: str = "unit") -> list[str]:
    """Return the files of tests/unit, or of another tier, that are named like the module."""
    module = Path(path).relative_to("gateway")
    folder = root / "tests" / tier / module.parent
    found = [folder / f"test_{module.stem}.py", *folder.glob(f"test_{module.stem}_*.py")]
    return sorted(file.relative_to(root).as_posix() for file in found if file.exists())


def unit_stages(root: Path, mutant: Mutant, tests: CoverageMap, limit_s: float) -> list[Stage]:
    """Return the mirrored tests that run the mutant, then the others of the folder and the rest."""
    mirrored = mirrored_files(root, mutant.path)
    covering = tests.tests_of(mutant)
    known = sorted(tests.durations)
    stages = []
    # What runs at import, say a default, is noticed by tests that run no line of the module.
    mirroring = {test for test in tests.passing() if test.partition("::")[0] in mirrored}
    first = mirroring if mutant.at_import else covering & mirroring
    folder = Path("tests/unit", Path(mutant.path).parent.relative_to("gateway")).as_posix() + "/"
    second = {test for test in covering - first if test.startswith(folder)}
    for name, files, chosen in (
        ("mirrored", mirrored, first),
        ("folder", [], second),
        ("unit", [], covering - first - second),
    ):
        ordered = tests.cheapest(chosen, limit_s)
        used = files or sorted({test.partition("::")[0] for test in ordered})
        plan = {"tests": ordered, "known": known if files else []}
        stages.append(Stage(name, used, plan, tests.duration_s(ordered), UNIT_TEST_LIMIT_S))
    return stages


def e2e_stage(mutant: Mutant) -> Stage:
    """Return the tests through sockets for the folder of the mutant."""
    folder = max((each for each in E2E if mutant.path.startswith(each + "/")), key=len)
    mirrored = mirrored_files(ROOT, mutant.path, "e2e")
    files = [*mirrored, *(f"tests/e2e/{name}" for name in E2E[folder])]
    return Stage("e2e", files, None, 120.0, E2E_TEST_LIMIT_S)


def witness_stage(mutant: Mutant) -> Stage:
    """Return the tests beside nsqd for the folder of the mutant."""
    files = [
        f"tests/witness/{name}"
        for folder, names in WITNESS.items()
        if mutant.path.startswith(folder + "/")
        for name in names
    ]
    return Stage("witness", files, None, 120.0, E2E_TEST_LIMIT_S)


# ---- Inside pytest -----------------------------------------------------------------------------

_durations: dict[str, float | None] = {}

# Find failures, but do not look for smaller examples of them.
hypothesis.settings.register_profile(
    "mutants",
    max_examples=50,
    deadline=None,
    derandomize=True,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests of the plan, and those that are newer than the map."""
    place = os.environ.get("MUTANTS_PLAN")
    plan = json.loads(Path(place).read_text()) if place else None
    if plan is None:
        return
    order = {test: number for number, test in enumerate(plan["tests"])}
    known = set(plan["known"])
    kept = [item for item in items if item.nodeid in order or (known and item.nodeid not in known)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(kept, key=lambda item: order.get(item.nodeid, -1))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what a test takes."""
    before = _durations.get(report.nodeid, 0.0)
    is_failed = report.failed or before is None
    _durations[report.nodeid] = None if is_failed else (before or 0.0) + report.duration


def pytest_sessionfinish() -> None:
    """Write what each test took."""
    place = os.environ.get("MUTANTS_DURATIONS")
    if place:
        Path(place).write_text(json.dumps(_durations))


# ---- The program -------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="verification/mutants.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=200, help="how many to draw (default: 200)")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the draw"
    )
    parser.add_argument("--only", nargs="+", default=[], help="names of mutants, not random ones")
    parser.add_argument(
        "--folders",
        nargs="+",
        default=list(FOLDERS),
        help="folders of gateway/ (default: all four)",
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=60.0,
        help="seconds of tests in each step for one mutant, the quickest first (default: 60)",
    )
    parser.add_argument("--map", type=Path, help="a folder that keeps which test runs which line")
    parser.add_argument("--no-e2e", action="store_true", help="run tests/unit only")
    return parser.parse_args()


def preload() -> None:
    """Import once, for all forks, what the project imports from others."""
    for name in ("fastapi", "httpx", "msgspec", "pydantic_settings", "uvicorn", "websockets"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def choose(arguments: argparse.Namespace) -> list[Mutant]:
    """Return the mutants that the command line asks for."""
    mutants = find_mutants(ROOT, arguments.folders)
    if not arguments.only:
        say(f"seed {arguments.seed}: {arguments.count} of {len(mutants)} mutants")
        return draw(ROOT, mutants, arguments.count, arguments.seed)
    named = {mutant.name: mutant for mutant in mutants}
    unknown = [name for name in arguments.only if name not in named]
    if unknown:
        sys.exit(f"no mutant is named {unknown[0]}: has its file changed?")
    return [named[name] for name in arguments.only]


def try_all(
    copy: Copy, mutants: Sequence[Mutant], stages: Sequence[Sequence[Stage]]
) -> Iterator[tuple[Mutant, Verdict]]:
    """Yield the mutants that no test fails for, and what is known of them."""
    for number, (mutant, each) in enumerate(zip(mutants, stages, strict=True), 1):
        started = time.monotonic()
        verdict, reason = copy.try_one(mutant, each)
        took_s = time.monotonic() - started
        told = f"{verdict} ({reason})" if reason else verdict.upper()
        say(f"{number}/{len(mutants)} {took_s:.0f} s {mutant.name} {told}")
        if verdict is not Verdict.KILLED:
            yield mutant, verdict


def main() -> None:
    """Draw mutants, run the tests on each, and print the survivors."""
    arguments = parse_arguments()
    mutants = choose(arguments)
    preload()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        copy = Copy(folder)
        place = arguments.map or folder / "map"
        if not (place / "durations.json").exists():
            say("running tests/unit for which test runs which line ...")
            copy.measure(place)
        tests = CoverageMap.read(place)
        failing = [test for test, duration_s in tests.durations.items() if duration_s is None]
        say(f"{len(tests.durations)} tests; left out, for they fail without a mutant: {failing}")
        stages = [unit_stages(copy.root, each, tests, arguments.limit_s) for each in mutants]
        left = dict(try_all(copy, mutants, stages))
        if left and not arguments.no_e2e:
            say(f"{len(left)} pass tests/unit; running tests/e2e and tests/witness ...")
            later = [[witness_stage(each), e2e_stage(each)] for each in left]
            left = dict(try_all(copy, list(left), later))
    for mutant, verdict in left.items():
        say(f"\n{mutant.name} {verdict}\n{mutant.diff((ROOT / mutant.path).read_bytes())}")
    counts = Counter(left.values())
    killed = len(mutants) - len(left)
    say(
        f"\n{killed} killed, {counts[Verdict.SURVIVED]} survived, "
        f"{counts[Verdict.UNDECIDED]} undecided: {killed / max(1, len(mutants)):.1%} killed"
    )


if __name__ == "__main__":
    main()
