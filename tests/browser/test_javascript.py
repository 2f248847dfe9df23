"""The JavaScript that we serve and show: types, form, size, and what npm would publish."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.browser.javascript_tools import CONFIGURATION, node, npm, tool
from tests.support.project import ROOT

pytestmark = pytest.mark.javascript

STATIC = ROOT / "gateway" / "web" / "site" / "static"
MODULE = STATIC / "nsq.js"
TYPES = STATIC / "nsq.d.ts"
LIMIT_BYTES = 9 * 1024 + 512
PUBLISHED = {"nsq.d.ts", "nsq.js", "package.json"}

# One subscription and one message, as a gateway would make them, and the names that each has:
# its own and those of its classes, up to what is JavaScript's.
_LOOK = """
const module = await import(process.argv.at(-1));
const say = (socket, told) => socket.onmessage({ data: JSON.stringify(told) });
class Gateway {
  readyState = 1;
  constructor() { queueMicrotask(() => this.begin()); }
  begin() {
    this.onopen();
    say(this, { type: "response", cmd: "SUB", ref: null, data: { msg_timeout_ms: 60000 } });
    say(this, { type: "message", id: "1", topic: "t", channel: "c", attempts: 1, body: "",
                timestamp_ns: "1", deadline_ms: 60000 });
  }
  send() {}
  close() {}
}
const foreign = new Set([Object, EventTarget, Error].map((each) => each.prototype));
const names = (thing) => {
  const found = new Set();
  for (let at = thing; at && !foreign.has(at); at = Object.getPrototypeOf(at))
    for (const name of Reflect.ownKeys(at)) found.add(String(name));
  found.delete("constructor");
  return [...found];
};
const options = { topic: "t", channel: "c", url: "ws://127.0.0.1:1", WebSocket: Gateway };
const subscription = module.subscribe(options);
const { value: message } = await subscription[Symbol.asyncIterator]().next();
console.log(JSON.stringify({
  "": Object.keys(module),
  Subscription: names(subscription),
  Message: names(message),
  NsqError: names(new module.NsqError("A", "b")),
}));
process.exit();
"""
_OF_EVERY_OBJECT = {
    "addEventListener",
    "constructor",
    "message",
    "name",
    "removeEventListener",
    "stack",
}
"""Those of EventTarget and Error, which types may name again."""
_OF_NODE = re.compile(r"Symbol\(k|Symbol\(events|Symbol\(nodejs")
"""What Node keeps of an EventTarget on the object itself."""


# Types


@pytest.mark.parametrize("project", ["tsconfig.json", "tsconfig.node.json"])
def test_what_runs_in_browsers_and_in_node_has_right_types(project: str) -> None:
    """The compiler finds nothing in the module, the console and the examples, in strict mode."""
    checked = tool("tsc", "--pretty", "false", "--project", str(CONFIGURATION / project))

    assert [] == checked.stdout.splitlines()


def test_the_types_let_right_use_pass_and_stop_misuse() -> None:
    """What users write compiles; each line that is marked as misuse does not."""
    project = str(ROOT / "tests" / "browser" / "types")
    checked = tool("tsc", "--pretty", "false", "--project", project)

    assert [] == checked.stdout.splitlines()


class Names(NamedTuple):
    """What the types say of a class, or of the module: names that are always there, and others."""

    required: set[str]
    optional: set[str]


def declared() -> dict[str, Names]:
    """Return the exports of the module under "", and the members of each class."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", TYPES.read_text(), flags=re.DOTALL)
    values = re.findall(r"^export (?:class|function|const) (\w+)", text, re.MULTILINE)
    found = {"": Names(set(values), set())}
    blocks = r"^export (?:class|interface) (\w+)[^{]*\{\n(.*?)^\}"
    for name, block in re.findall(blocks, text, re.DOTALL | re.MULTILINE):
        members = re.findall(
            r"^  (?:readonly )?(?:(\w+)|\[([\w.]+)\])(\??)[(:<]", block, re.MULTILINE
        )
        found[name] = Names(
            {word or symbol for word, symbol, mark in members if not mark} - _OF_EVERY_OBJECT,
            {word or symbol for word, symbol, mark in members if mark},
        )
    return found


def test_what_the_module_has_is_declared_and_nothing_else() -> None:
    """Exports, and the public members of what they make, are the same in nsq.js and nsq.d.ts."""
    seen: dict[str, list[str]] = json.loads(node(_LOOK, str(MODULE)))
    types = declared()
    has = {
        owner: {
            name.removeprefix("Symbol(").removesuffix(")")
            for name in names
            if not _OF_NODE.match(name)
        }
        - _OF_EVERY_OBJECT
        for owner, names in seen.items()
    }

    assert {owner: set() for owner in has} == {
        owner: names - types[owner].required - types[owner].optional for owner, names in has.items()
    }
    assert {owner: set() for owner in has} == {
        owner: types[owner].required - names for owner, names in has.items()
    }


# Form


def test_what_a_browser_gets_is_formatted_and_has_no_lint() -> None:
    """Scripts, styles, pages and JSON are as `make format` writes them."""
    style = f"--config-path={CONFIGURATION / 'style.jsonc'}"
    checked = tool("biome", "check", "--error-on-warnings", "--max-diagnostics=50", style)

    assert 0 == checked.returncode, checked.stdout + checked.stderr


# What is published


def test_the_module_is_small() -> None:
    """Compressed, as a server sends it, it has at most 9.5 KiB."""
    assert len(gzip.compress(MODULE.read_bytes(), compresslevel=9)) <= LIMIT_BYTES


def published() -> dict[str, Any]:
    """Return what npm would publish."""
    packed = json.loads(npm("pack", "--dry-run", "--json", folder=STATIC))
    [package] = packed.values() if isinstance(packed, dict) else packed
    assert isinstance(package, dict)
    return package


def test_the_package_has_the_module_and_its_types_only() -> None:
    """Nothing of the console, nor of the documents beside it, gets into the package."""
    files = {each["path"] for each in published()["files"]}

    assert PUBLISHED == files - {"LICENSE", "README.md"}


def test_the_tools_are_pinned_by_hash_and_name_no_host() -> None:
    """The lock file of each folder of Node's has a hash for every package, and no address."""
    for path in sorted(Path(ROOT / "tools").glob("*/package-lock.json")):
        packages = json.loads(path.read_text())["packages"]
        packages.pop("")

        assert [] == [name for name, each in packages.items() if "integrity" not in each]
        assert [] == [name for name, each in packages.items() if "resolved" in each]
