"""
Generate the page of /docs, and /openapi.json, from openapi.yaml: python tools/make_docs_page.py.

The renderer supports the parts of OpenAPI that openapi.yaml uses; a test renders all of it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

import msgspec
import yaml

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ROOT / "openapi.yaml"
STYLESHEET = ROOT / "tools" / "docs.css"
STATIC = ROOT / "gateway" / "web" / "site" / "static"
PAGE, JSON = STATIC / "docs.html", STATIC / "openapi.json"

_VOID = frozenset({"br", "meta"})
_MARKS = re.compile(r"`(?P<code>[^`]+)`|\*\*(?P<strong>[^*]+)\*\*")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str) -> Html:
    """
    Return an HTML element.

    In attribute names, an underscore becomes a dash, and one at the end is dropped: ``class_``.
    """
    pairs = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    ]
    start = f"<{name}{''.join(pairs)}>"
    return Html(start if name in _VOID else f"{start}{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Return the concatenation of *children*, each escaped unless it is `Html`."""
    return Html("".join(each if isinstance(each, Html) else escape(each) for each in children))


def prose(text: str) -> Html:
    """
    Render the subset of Markdown that the contract uses.

    Paragraphs are separated by blank lines; lines that start with ``- `` are list items. Inline,
    there are only `code` and **strong**.
    """
    return join(*map(_block, re.split(r"\n\s*\n", text.strip())))


def line(text: str) -> Html:
    """Render the inline Markdown of *text*, without a paragraph."""
    parts: list[str] = []
    start = 0
    for mark in _MARKS.finditer(text):
        name = str(mark.lastgroup)
        parts += [text[start : mark.start()], element(name, mark[name])]
        start = mark.end()
    return join(*parts, text[start:])


def _block(text: str) -> Html:
    if not text.startswith("- "):
        return element("p", line(text))
    items = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    return element("ul", *(element("li", line(item.strip())) for item in items))


Json: TypeAlias = Mapping[str, Any]

_PROBLEM = "application/problem+json"
_DOCTYPE = Html("<!DOCTYPE html>\n")


def documentation_page(contract: Json, stylesheet: str) -> str:
    """Return the HTML page for *contract* (OpenAPI 3.1) with the inline *stylesheet*."""
    return _DOCTYPE + _Page(contract).render(Html(stylesheet))


class _Page:
    """Renders one contract, and resolves its references."""

    def __init__(self, contract: Json) -> None:
        self._contract = contract

    def render(self, stylesheet: Html) -> Html:
        info = self._contract["info"]
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", info["title"]),
            element("style", stylesheet),
        )
        intro = element(
            "header",
            element("h1", info["title"], " ", element("small", info["version"])),
            element("p", info["summary"]),
            element(
                "p",
                "Machine-readable: ",
                element("a", "openapi.yaml", href="openapi.yaml"),
                ", ",
                element("a", "openapi.json", href="openapi.json"),
                "; the WebSocket protocol: ",
                element("a", "asyncapi.yaml", href="asyncapi.yaml"),
                ".",
            ),
        )
        sections = [self._group(tag) for tag in self._contract["tags"]]
        about = element("section", prose(info["description"]), id="about")
        main = element("main", intro, about, *sections, self._schemas(), self._examples())
        return element("html", head, element("body", self._contents(), main), lang="en")

    # Operations

    def _operations(self, tag: str) -> Iterator[tuple[str, str, Json]]:
        """Yield method, path and operation of each operation with *tag*."""
        for path, methods in self._contract["paths"].items():
            for method, operation in methods.items():
                if tag in operation["tags"]:
                    yield method.upper(), path, operation

    def _contents(self) -> Html:
        parts = []
        for tag in self._contract["tags"]:
            links = [
                element("li", element("a", _route(method, path), href=f"#{each['operationId']}"))
                for method, path, each in self._operations(tag["name"])
            ]
            parts += [element("h2", tag["name"]), element("ul", *links)]
        return element("nav", *parts, aria_label="Operations")

    def _group(self, tag: Json) -> Html:
        operations = [self._operation(*each) for each in self._operations(tag["name"])]
        heading = element("h2", tag["name"])
        return element("section", heading, prose(tag["description"]), *operations)

    def _operation(self, method: str, path: str, operation: Json) -> Html:
        parameters = [self._resolved(each) for each in operation["parameters"]]
        parts = [
            element("h3", _route(method, path)),
            element("p", line(operation["summary"])),
            prose(operation.get("description", "")) if "description" in operation else Html(),
            element("pre", self._command(method, path, operation, parameters)),
            _secret(operation),
            element("h4", "Parameters"),
            element("dl", *(self._parameter(each) for each in parameters)),
        ]
        if body := operation.get("requestBody"):
            parts += [element("h4", "Body"), prose(body["description"])]
        parts.append(element("h4", "Responses"))
        parts += [self._response(*each) for each in operation["responses"].items()]
        return element("article", *parts, id=operation["operationId"])

    def _command(self, method: str, path: str, operation: Json, parameters: list[Json]) -> str:
        """Return a shell command for the operation, with the examples of required values."""
        server = self._contract["servers"][0]["url"]
        words = ["curl"]
        if "101" in operation["responses"]:
            words, server = ["websockets"], server.replace("http", "ws", 1)
        elif body := operation.get("requestBody"):
            example = self._resolved(
                next(iter(next(iter(body["content"].values()))["examples"].values()))
            )["value"]
            text = example if isinstance(example, str) else json.dumps(example)
            words += ["--data-binary", _quoted(text)]
        elif method != "GET":
            words += ["-X", method]
        query = {
            each["name"]: each["example"]
            for each in parameters
            if each["in"] == "query" and each.get("required")
        }
        words.append(shlex.quote(f"{server}{path}{'?' if query else ''}{urlencode(query)}"))
        return " ".join(words)

    def _parameter(self, parameter: Json) -> Html:
        need = "required" if parameter.get("required") else "optional"
        where = f" {parameter['in']}, {need}; "
        term = element(
            "dt", element("code", parameter["name"]), where, self._kind(parameter["schema"])
        )
        example = join("Example: ", element("code", str(parameter["example"])))
        return join(term, element("dd", prose(parameter["description"]), element("p", example)))

    def _response(self, status: str, response: Json) -> Html:
        response = self._resolved(response)
        headers = [
            self._header(name, self._resolved(header))
            for name, header in response.get("headers", {}).items()
        ]
        parts = [element("dl", *headers)] if headers else []
        for media_type, media in response.get("content", {}).items():
            parts += self._media(media_type, media)
        words = (element("b", status), " ", line(response["description"]))
        summary = element("summary", *words, " ", _tokens_of(response))
        return element("details", summary, *parts)

    def _media(self, media_type: str, media: Json) -> Iterator[Html]:
        """Yield the schema with links to shared examples, then the other examples."""
        shape = self._kind(media["schema"])
        examples = media["examples"].items()
        shared = [
            join(" ", element("a", name, href=f"#example-{_last(example)}"))
            for name, example in examples
            if "$ref" in example
        ]
        links = join("; see", *shared) if shared else ""
        yield element("p", element("code", media_type), ": ", shape, links)
        for _, example in examples:
            if "$ref" not in example:
                yield element("pre", _text(example["value"]))

    def _header(self, name: str, header: Json) -> Html:
        term = element("dt", element("code", name), " ", self._kind(header["schema"]))
        return join(term, element("dd", line(header["description"])))

    # Schemas

    def _schemas(self) -> Html:
        schemas = self._contract["components"]["schemas"]
        parts = [self._schema(name, schema) for name, schema in schemas.items()]
        return element("section", element("h2", "Schemas"), *parts)

    def _schema(self, name: str, schema: Json) -> Html:
        required = schema.get("required", ())
        rows = [
            join(
                element(
                    "dt",
                    element("code", key),
                    " ",
                    self._kind(each),
                    "" if key in required else "; optional",
                ),
                element("dd", line(each.get("description", ""))),
            )
            for key, each in schema.get("properties", {}).items()
        ]
        heading = element("h3", element("code", name))
        words = prose(schema["description"])
        return element("article", heading, words, element("dl", *rows), id=f"schema-{name}")

    def _examples(self) -> Html:
        examples = self._contract["components"]["examples"]
        parts = [
            element(
                "article",
                element("h3", element("code", name)),
                element("pre", _text(example["value"])),
                id=f"example-{name}",
            )
            for name, example in examples.items()
        ]
        return element("section", element("h2", "Examples"), *parts)

    def _kind(self, schema: Json) -> Html:
        """Return a short description of *schema*."""
        if "$ref" in schema:
            name = _last(schema)
            return element("a", name, href=f"#schema-{name}")
        if "const" in schema:
            return element("code", _text(schema["const"]))
        kind = schema.get("type", "anything")
        words: list[str] = [kind if isinstance(kind, str) else " or ".join(kind)]
        if "items" in schema:
            words += [" of ", self._kind(schema["items"])]
        low, high, unit = _bounds(schema)
        if low is not None or high is not None:
            words.append(f", {_range(low, high)}{unit}")
        if "pattern" in schema:
            words += [", ", element("code", schema["pattern"])]
        if "default" in schema:
            words += [", default ", element("code", str(schema["default"]))]
        return join(*words)

    def _resolved(self, node: Json) -> Json:
        """Return *node*, or the target of its reference."""
        while "$ref" in node:
            found: Json = self._contract
            for part in node["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            node = found
        return node


def _last(reference: Json) -> str:
    """Return the last part of a reference."""
    name: str = reference["$ref"].rpartition("/")[2]
    return name


def _route(method: str, path: str) -> Html:
    return join(element("b", method, class_=method.lower()), " ", element("code", path))


def _secret(operation: Json) -> Html:
    if not operation.get("security"):
        return Html()
    header = element("code", "Authorization: Bearer SECRET")
    return element("p", "Takes ", header, " if authentication is required.")


def _tokens_of(response: Json) -> str:
    """Return the error tokens of a response, for its summary line."""
    return ", ".join(response.get("content", {}).get(_PROBLEM, {}).get("examples", ()))


def _quoted(text: str) -> str:
    """Return *text* quoted for a shell; several lines need bash or zsh."""
    quoted = shlex.quote(text)
    return "$'{}'".format(text.replace("\n", "\\n")) if "\n" in text else quoted


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _bounds(schema: Json) -> tuple[int | None, int | None, str]:
    if "minLength" in schema or "maxLength" in schema:
        return schema.get("minLength"), schema.get("maxLength"), " bytes"
    return schema.get("minimum"), schema.get("maximum"), ""


def _range(low: int | None, high: int | None) -> str:
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"{low} to {high}"


def generate() -> dict[Path, bytes]:
    """Return the content of each generated file."""
    contract: dict[str, Any] = yaml.safe_load(CONTRACT.read_text(encoding="utf-8"))
    page = documentation_page(contract, STYLESHEET.read_text(encoding="utf-8"))
    return {PAGE: page.encode(), JSON: msgspec.json.encode(contract)}


if __name__ == "__main__":
    for path, content in generate().items():
        path.write_bytes(content)
