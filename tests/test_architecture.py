"""The rules of the house hold, and each rule finds what is planted against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.architecture import (
    PURE,
    Rule,
    Source,
    caps,
    cycles,
    docstrings,
    facts,
    homes,
    levels,
    purity,
    read,
    tasks,
    waiting,
)

ROOT = Path(__file__).parents[1]
GATEWAY_RULES = [levels, purity, homes, cycles, caps, tasks, docstrings]
TEST_RULES = [waiting, facts]


@pytest.mark.parametrize("rule", GATEWAY_RULES, ids=lambda rule: rule.__name__)
def test_the_gateway_keeps_the_rule(rule: Rule) -> None:
    """No file of gateway/ breaks the rule."""
    assert [] == rule(read(ROOT / "gateway"))


@pytest.mark.parametrize("rule", TEST_RULES, ids=lambda rule: rule.__name__)
def test_the_tests_keep_the_rule(rule: Rule) -> None:
    """No file of tests/ breaks the rule."""
    assert [] == rule(read(ROOT / "tests"))


@pytest.mark.parametrize("path", PURE)
def test_what_is_listed_as_pure_is_there(path: str) -> None:
    """A PURE file that was renamed is renamed in the list too, or the rule would pass it by."""
    assert (ROOT / "gateway" / path).exists()


def planted(*files: tuple[str, str]) -> list[Source]:
    """Return sources that are nowhere but here; the named parts exist as empty packages."""
    doors = ["client/__init__.py", "broker/__init__.py", "web/__init__.py", "telemetry/__init__.py"]
    return [Source(path, text) for path, text in files] + [Source(path, "") for path in doors]


@pytest.mark.parametrize(
    "path,text,complaint",
    [
        ("errors.py", "import gateway.web", "errors.py:1 errors imports gateway.web"),
        ("broker/server.py", "from gateway import client", "server.py:1 broker imports gateway.cl"),
        ("broker/server.py", "from gateway.client import X", "server.py:1 broker imports gateway."),
        ("broker/server.py", "from ..web import app", "server.py:1 broker imports gateway.web"),
        ("broker/server.py", "def f():\n    import gateway.web", "server.py:2 broker imports"),
        ("settings.py", "import gateway.telemetry", "settings.py:1 settings imports gateway.tele"),
        ("helpers.py", "", "helpers.py:1 helpers is on no level"),
    ],
)
def test_an_import_that_is_not_downward_is_found(path: str, text: str, complaint: str) -> None:
    """An import to a neighbour or a higher level, in any spelling, is one finding."""
    findings = levels(planted((path, text)))

    assert [True] == [complaint in finding for finding in findings]


@pytest.mark.parametrize(
    "path,text",
    [
        ("web/app.py", "from gateway.client import Publisher\nimport gateway.telemetry"),
        ("broker/server.py", "from gateway.broker.handler import handle\nfrom . import topic"),
        ("telemetry/logs.py", "from gateway.errors import GatewayError"),
        ("errors.py", "from gateway import __version__"),
    ],
)
def test_an_import_downward_or_inside_its_part_is_allowed(path: str, text: str) -> None:
    """Lower levels, the own part, and errors from settings and telemetry may be imported."""
    files = [(path, text), ("broker/handler.py", ""), ("broker/topic.py", ""), ("__init__.py", "")]
    errors = [] if path == "errors.py" else [("errors.py", "")]

    assert [] == levels(planted(*files, *errors))


@pytest.mark.parametrize(
    "path,text",
    [
        ("protocol/wire.py", "import asyncio"),
        ("session/session.py", "from os.path import join"),
        ("client/ready.py", "import logging.handlers"),
        ("broker/channel.py", "def f():\n    from time import monotonic"),
        ("broker/handler.py", "from gateway import telemetry"),
        ("broker/topic.py", "from gateway.settings import Settings"),
    ],
)
def test_the_world_in_a_pure_file_is_found(path: str, text: str) -> None:
    """A PURE file that imports the clock, the network, a log or a setting is one finding."""
    assert 1 == len(purity([Source(path, text)]))


def test_a_shell_file_may_know_the_world() -> None:
    """The files beside the PURE ones import asyncio and time freely."""
    assert [] == purity([Source("client/connection.py", "import asyncio, time")])


def test_a_web_framework_outside_of_web_is_found() -> None:
    """FastAPI is imported in web/ and nowhere else."""
    sources = [Source("web/app.py", "import fastapi"), Source("service.py", "import fastapi")]

    assert ["service.py:1 fastapi is for web/ only"] == homes(sources)


def test_a_cycle_of_imports_is_found() -> None:
    """Modules that import each other in a circle are named in the order of the circle."""
    sources = [
        Source("broker/topic.py", "from gateway.broker.channel import Channel"),
        Source("broker/channel.py", "def f():\n    from gateway.broker import topic"),
    ]

    (finding,) = cycles(sources)

    assert finding.startswith("import cycle: gateway.broker.")


@pytest.mark.parametrize(
    "text,complaint",
    [
        ("\n" * 401, "cli.py:1 401 lines (cap 400)"),
        ("def f():\n" + "    1\n" * 50, "cli.py:1 f has 51 lines (cap 50)"),
        ("def f(a, b, /, c, *d, e, f, **g): ...", "cli.py:1 f takes 7 parameters (cap 6)"),
        (
            "class A:\n    def f(self, a, b, c, d, e, f, g): ...",
            "cli.py:2 f takes 7 parameters (cap 6)",
        ),
    ],
    ids=["file", "function", "parameters", "method"],
)
def test_what_is_over_a_cap_is_found(text: str, complaint: str) -> None:
    """A file, a function or a list of parameters that is one over its cap is one finding."""
    assert [complaint] == caps([Source("cli.py", text)])


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 400,
        "def f():\n" + "    1\n" * 49,
        "class A:\n    def f(self, a, b, c, d, e, f): ...",
    ],
    ids=["file", "function", "method"],
)
def test_what_just_fits_a_cap_is_allowed(text: str) -> None:
    """400 lines, 50 lines and 6 parameters beside self are not too much."""
    assert [] == caps([Source("cli.py", text)])


@pytest.mark.parametrize(
    "text",
    [
        "asyncio.create_task(f())",
        "asyncio.ensure_future(f())",
        "loop.create_task(f())",
        "create_task(f())",
    ],
)
def test_a_task_that_nobody_watches_is_found(text: str) -> None:
    """Starting a task outside of telemetry/tasks.py is one finding, inside of it none."""
    sources = [Source("web/app.py", text), Source("telemetry/tasks.py", text)]

    assert 1 == len(tasks(sources))


def test_a_task_in_a_group_is_allowed() -> None:
    """A TaskGroup waits for its tasks, so it may start them anywhere."""
    assert [] == tasks([Source("web/app.py", "group.create_task(f())")])


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        '"""Door."""\ndef f(): ...',
        '"""Door."""\nclass A: ...',
        '"""Door."""\nclass A:\n    """A."""\n    async def f(self): ...',
    ],
    ids=["module", "function", "class", "method"],
)
def test_a_public_name_without_docstring_is_found(text: str) -> None:
    """A module, function, class or method that says nothing of itself is one finding."""
    assert 1 == len(docstrings([Source("cli.py", text)]))


def test_a_private_name_needs_no_docstring() -> None:
    """What begins with an underscore, or stands inside a function, may go without."""
    text = '"""Door."""\ndef _f(): ...\nclass _A:\n    def f(self): ...\n'

    assert [] == docstrings([Source("cli.py", text)])


@pytest.mark.parametrize("name", ["asyncio.sleep", "time.sleep", "sleep", "await anyio.sleep"])
def test_a_test_that_sleeps_is_found(name: str) -> None:
    """Any call of something named sleep, however short, is one finding."""
    assert 1 == len(waiting([Source("test_x.py", f"async def f():\n    {name}(0)")]))


@pytest.mark.parametrize(
    "text",
    ["def test_x(): ...", "def test_x():\n    'no sentence'", "async def test_x(): ..."],
)
def test_a_test_without_its_fact_is_found(text: str) -> None:
    """A test whose docstring is missing or no sentence is one finding."""
    assert 1 == len(facts([Source("test_x.py", text)]))
