"""The npm package of nsq.js: packed, installed from its tarball, and imported."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gateway import __version__
from tests.support.browser.javascript_tools import javascript_tools, npm
from tests.support.project import ROOT
from verification.package.conftest import run

pytestmark = pytest.mark.javascript

STATIC = ROOT / "gateway" / "web" / "site" / "static"
PROGRAM = """
import { NsqError, Subscription, subscribe } from "nsq-gateway";
import manifest from "nsq-gateway/package.json" with { type: "json" };

const names = [NsqError, Subscription, subscribe].map((each) => each.name);
let refusal = "";
try {
  subscribe({ topic: "orders", chanel: "billing" });
} catch (error) {
  refusal = error.message;
}
console.log(JSON.stringify({ names, refusal, version: manifest.version }));
"""
TYPED_PROGRAM = """
import { type Message, NsqError, type Subscription, subscribe } from "nsq-gateway";

const orders: Subscription = subscribe({ url: "http://127.0.0.1:8080", topic: "orders" });
const sizes: number[] = [];
for await (const message of orders) {
  const each: Message = message;
  sizes.push(each.body.length, each.attempts);
  const isFinished: boolean = await each.finish();
  await orders.publish("orders", "two").catch((error) => {
    if (error instanceof NsqError && error.retryable) sizes.push(isFinished ? 1 : 0);
  });
}
"""
MISUSES = [
    ('topic: "orders"', "topic: 5"),
    ("each.attempts", "each.tries"),
    ("isFinished: boolean", "isFinished: string"),
]
COMPILER_OPTIONS = {
    "lib": ["es2023", "dom", "dom.iterable", "dom.asynciterable"],
    "module": "nodenext",
    "noEmit": True,
    "strict": True,
    "target": "es2022",
    "types": [],
}


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tarball of `npm pack`."""
    folder = tmp_path_factory.mktemp("packed")
    npm("pack", "--pack-destination", str(folder), folder=STATIC)
    [path] = folder.iterdir()
    return path


@pytest.fixture
def project(tarball: Path, tmp_path: Path) -> Path:
    """Return an empty project with the package installed from its tarball."""
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    npm("install", "--no-audit", "--no-fund", str(tarball), folder=tmp_path)
    return tmp_path


def test_the_tarball_has_the_version_of_the_gateway(tarball: Path) -> None:
    assert f"nsq-gateway-{__version__}.tgz" == tarball.name


def test_the_package_has_the_module_its_types_and_the_licence(project: Path) -> None:
    package = project / "node_modules" / "nsq-gateway"

    assert ["LICENSE", "README.md", "nsq.d.ts", "nsq.js", "package.json"] == sorted(
        path.name for path in package.iterdir()
    )
    assert (ROOT / "LICENSE").read_bytes() == (package / "LICENSE").read_bytes()


def test_node_imports_the_package_by_its_name(project: Path) -> None:
    (project / "program.js").write_text(PROGRAM)
    found = json.loads(run("node", "program.js", cwd=project))

    assert ["NsqError", "Subscription", "subscribe"] == found["names"]
    assert __version__ == found["version"]
    assert found["refusal"].startswith("unknown option chanel")


def compiled(project: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Check *source* with `tsc`."""
    tools = javascript_tools()
    assert tools is not None
    (project / "program.ts").write_text(source)
    (project / "tsconfig.json").write_text(
        json.dumps({"compilerOptions": COMPILER_OPTIONS, "files": ["program.ts"]})
    )
    return subprocess.run(
        [tools / "node_modules" / ".bin" / "tsc"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )


def test_typescript_accepts_a_program_that_uses_the_types(project: Path) -> None:
    ended = compiled(project, TYPED_PROGRAM)

    assert (0, "") == (ended.returncode, ended.stdout)


@pytest.mark.parametrize("right, wrong", MISUSES)
def test_typescript_refuses_a_program_that_misuses_them(
    project: Path, right: str, wrong: str
) -> None:
    assert 1 == TYPED_PROGRAM.count(right)
    ended = compiled(project, TYPED_PROGRAM.replace(right, wrong))

    assert 0 != ended.returncode
    assert "program.ts" in ended.stdout
