"""
Questions of operators and developers, each answered within two pages of the map of the documents.

They are what users of NSQ ask in its issues and on this project's first days. A page is reached by
links alone: the first from docs/README.md, the second from the first.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.document_traceability import ROOT

DOCS = ROOT / "docs"


class Question(NamedTuple):
    """What somebody asks, the pages that lead to the answer, and words that it has."""

    text: str
    pages: tuple[str, ...]
    section: str
    """The heading of the answer on the last page."""
    words: tuple[str, ...]


QUESTIONS = (
    Question("Which versions of nsqd work?", ("supported-versions.md",), "", ("1.3.0",)),
    Question(
        "How do I rotate the certificate?",
        ("recipes.md",),
        "Rotate the certificate",
        ("--tls-cert", "within 5 s", "no restart", "--nsqd-tls-cert"),
    ),
    Question(
        "How do I rotate a secret?",
        ("recipes.md",),
        "Rotate a secret",
        ("auth server", "--auth-recheck-s", "restart"),
    ),
    Question(
        "What does 504 mean for me?",
        ("troubleshooting.md",),
        "HTTP status and code",
        ("504 `OUTCOME_UNKNOWN`", "may or may not be published"),
    ),
    Question(
        "Why does my page's socket close with 1006 before it opens?",
        ("troubleshooting.md",),
        "Close codes",
        ("1006", "plain GET"),
    ),
    Question(
        "Why do I get E_FIN_FAILED, not in flight?",
        ("troubleshooting.md",),
        "Error codes of a WebSocket",
        ("`E_FIN_FAILED`", "deadline", "TOUCH"),
    ),
    Question(
        "How do I write a consumer in Python?",
        ("client.md",),
        "",
        ("async with Consumer(", "await consumer.run(handle"),
    ),
    Question(
        "What does Consumer.run take?",
        ("client_api.md",),
        "",
        ("::: gateway.client",),
    ),
    Question(
        "How do I write a client in another language?",
        ("recipes.md", "websocket.md"),
        "Writing a client",
        ("send AUTH first", "Split a frame", "Reconnect according to"),
    ),
    Question(
        "How does a page of another origin publish?",
        ("http.md",),
        "Browsers that publish (CORS)",
        ("--allow-origin",),
    ),
    Question(
        "Every tab is to see every message. How?",
        ("recipes.md", "websocket.md"),
        "Consumers and viewers",
        ("every message from now on",),
    ),
    Question(
        "My work takes ten minutes. How do I keep the message?",
        ("recipes.md",),
        "Work for ten minutes on a message",
        ("TOUCH", "msg_timeout_ms=600000"),
    ),
    Question(
        "Is there a dead-letter queue?",
        ("recipes.md",),
        "Set messages aside that always fail (a dead-letter topic)",
        ("another topic", "max_attempts"),
    ),
    Question(
        "How do I get one message with curl?",
        ("recipes.md",),
        "Get a single message with curl",
        ("--count 1",),
    ),
    Question(
        "Do messages survive a restart of nsqd, of the gateway, a kill?",
        ("faults.md",),
        "Message loss by outcome",
        ("is killed (SIGKILL)", "embedded broker stops"),
    ),
    Question(
        "nsqd's HTTP asks for no secret. How do I protect publishing and administration?",
        ("recipes.md",),
        "Let only those publish and subscribe who may",
        ("--require-auth", "--admin-secret-file", "HTTP port private"),
    ),
    Question(
        "How much memory and how many sockets does a gateway need?",
        ("operations.md",),
        "Sizing",
        ("KiB", "--max-sockets", "soft limit"),
    ),
    Question(
        "How do I roll out a new version in Kubernetes without losing messages?",
        ("kubernetes.md",),
        "How a pod ends",
        ("SIGTERM", "1012"),
    ),
    Question(
        "How do I see the backlog of a channel?",
        ("recipes.md", "operations.md"),
        "Monitoring",
        ("depth", "/stats"),
    ),
    Question(
        "What do I configure in nginx?",
        ("tls-and-proxies.md",),
        "Behind a proxy",
        ("proxy_next_upstream off", "Upgrade", "--trusted-proxy"),
    ),
    Question(
        "How do I archive a topic to Parquet?",
        ("pipeline-jobs.md",),
        "Archive",
        ("pipeline archive", "Parquet"),
    ),
    Question(
        "Should I use nsq_to_http instead?",
        ("compared-with.md",),
        "nsq_to_http",
        ("Use nsq_to_http",),
    ),
)


def _links(path: Path) -> set[str]:
    """Return the pages of docs/ that a page links to."""
    return set(re.findall(r"\]\(([\w.-]+\.md)(?:#[\w-]+)?\)", path.read_text()))


def _section(path: Path, heading: str) -> str:
    """Return the text below a heading, with its subsections."""
    text = path.read_text()
    if not heading:
        return text
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"{path.name} has no heading {heading!r}"
    level = len(found[1])
    return re.split(rf"^#{{1,{level}}} ", text[found.end() :], flags=re.MULTILINE)[0]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_a_question_is_answered_within_two_pages(question: Question) -> None:
    """Its pages are linked, one from the other, and the last one has the words of the answer."""
    source = "README.md"
    for page in question.pages:
        assert page in _links(DOCS / source), f"{source} does not link to {page}"
        source = page
    answer = " ".join(_section(DOCS / source, question.section).split())

    assert len(question.pages) <= 2
    assert [] == [word for word in question.words if word not in answer]
