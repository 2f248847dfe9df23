"""Why a query ended: one sentence out of what Spark says, which is a page."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MOST_CHARACTERS = 400
_PYTHON_ERROR = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?")
_TRACEBACK = "Traceback (most recent call last):"
_SPARK_CLASS = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]\s*")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+.*")
_JAVA_CLASS = re.compile(r"^(?:[a-z]\w*\.)+([A-Z]\w*): ")
_ENDED = "terminated with exception: "

_NEVER_HEALS = frozenset(
    {
        "SettingsError",
        "SettingRefused",
        "AuthRequired",
        "RowRefused",
        "LocalProtocolError",
        "SpoolDamaged",
        "SpoolLost",
        "ImportError",
        "ModuleNotFoundError",
    }
)
"""Errors of Python that are the same at the next try, which would only publish more twice."""
_RAISED = "USER_RAISED_EXCEPTION"
"""Spark's word for what a condition of ours has found in a row, which it finds again."""
_REFUSED = re.compile(r"E_(AUTH|UNAUTHORIZED|BAD_TOPIC|BAD_CHANNEL)")
_OTHER_CHECKPOINT = re.compile(
    r"sources in the checkpoint offsets|STREAMING_CHECKPOINT|INCOMPATIBLE.*CHECKPOINT"
    r"|CHECKPOINT.*(MISMATCH|INCOMPATIBLE)|STATE_STORE_.*SCHEMA|Cannot continue"
)


@dataclass(frozen=True)
class Failure:
    """Why a query ended."""

    kind: str
    """The class of the error: of the Python one, else Spark's own word."""
    sentence: str
    """What it says, on one line."""
    can_heal: bool
    """Whether to start the query again may help."""

    def __str__(self) -> str:
        """Return both on one line."""
        return f"{self.kind}: {self.sentence}" if self.sentence else self.kind


def explain(text: str) -> Failure:
    """Return what the message *text* of a query that failed comes to."""
    kind, sentence = _python_error(text) or _spark_error(text)
    sentence = _SQL_STATE.sub("", sentence).strip()
    if len(sentence) > _MOST_CHARACTERS:
        sentence = sentence[: _MOST_CHARACTERS - 1] + "…"
    is_lasting = (
        kind in _NEVER_HEALS
        or _RAISED in text
        or (kind == "BrokerRefused" and _REFUSED.search(sentence) is not None)
        or _OTHER_CHECKPOINT.search(f"{kind} {sentence}") is not None
    )
    return Failure(kind, sentence, can_heal=not is_lasting)


def _python_error(text: str) -> tuple[str, str] | None:
    """Return class and first line of the last error of Python in *text*."""
    if _TRACEBACK not in text:
        return None
    lines = text[text.rindex(_TRACEBACK) :].splitlines()[1:]
    for line in lines:
        found = _PYTHON_ERROR.fullmatch(line.strip()) if not line.startswith((" ", "\t")) else None
        if found is not None:
            return found[1].rpartition(".")[2], found[2] or ""
    return None


def _spark_error(text: str) -> tuple[str, str]:
    """Return Spark's word and its first line; what a query says of itself is left out."""
    cause = text.rpartition(_ENDED)[2]
    found = _SPARK_CLASS.match(cause)
    kind = "Spark" if found is None else found[1]
    line = next(iter((cause if found is None else cause[found.end() :]).strip().splitlines()), "")
    java = _JAVA_CLASS.match(line)
    if found is None and java is not None:
        kind, line = java[1], line[java.end() :]
    return kind, line
