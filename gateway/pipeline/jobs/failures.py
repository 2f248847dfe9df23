"""Extract the cause of a failed query, as one sentence, from Spark's page-long messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.errors import GatewayError

_MOST_CHARACTERS = 400
_PYTHON_ERROR = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?")
_OWN_ERROR = re.compile(r"\bgateway\.(?:\w+\.)+([A-Z]\w*): (.*)")
_TRACEBACK = "Traceback (most recent call last):"
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""If this variable is set, Spark's worker reports an exception without its traceback."""
_SPARK_CLASS = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]\s*")
_SPARK_WORD = re.compile(r"^(?:[\w$]+\.)+[\w$]+: \[[A-Z]")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+.*")
_JAVA_CLASS = re.compile(r"^(?:[a-z]\w*\.)+([A-Z][\w$]*): ")
_ENDED = "terminated with exception: "
_CALLED = "An error occurred while calling "
"""Start of py4j's message; the Java stack trace follows it."""
_RAISED_IN_JAVA = re.compile(
    r"^(?:: |Caused by: )(?!py4j\.)((?:[\w$]+\.)+[\w$]+(?:: .*)?)$", re.MULTILINE
)

_PERMANENT = frozenset(
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
"""Python errors that would recur after a restart, which would only publish duplicates."""
_RAISED = "USER_RAISED_EXCEPTION"
"""Spark's error class for `raise_error`, as in a replay; a restart would find the same row."""
_REFUSED = re.compile(r"E_(AUTH|UNAUTHORIZED|BAD_TOPIC|BAD_CHANNEL)")
_OTHER_CHECKPOINT = re.compile(
    r"sources in the checkpoint offsets|STREAMING_CHECKPOINT|INCOMPATIBLE.*CHECKPOINT"
    r"|CHECKPOINT.*(MISMATCH|INCOMPATIBLE)|STATE_STORE_.*SCHEMA|Cannot continue"
)


@contextmanager
def without_traceback() -> Iterator[None]:
    """
    Context manager: make Spark report a GatewayError of the block without its traceback.

    This sets a variable in the environment of a Spark worker. That affects nothing else: the
    process ends with the exception.
    """
    try:
        yield
    except GatewayError:
        # Only in a worker: in another process the variable would hide later tracebacks too.
        program = getattr(sys.modules["__main__"], "__spec__", None)
        if program is not None and program.name.startswith("pyspark."):
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


@dataclass(frozen=True)
class Failure:
    """The cause of a failed query."""

    kind: str
    """Class of the Python error, or else Spark's error class."""
    sentence: str
    """Message of the error, on one line."""
    is_retryable: bool
    """True if a restart of the query may succeed."""

    def __str__(self) -> str:
        """Return class and message on one line."""
        return f"{self.kind}: {self.sentence}" if self.sentence else self.kind


def explain(text: str) -> Failure:
    """Return the failure described by *text*, the message of a query's exception."""
    kind, sentence = _java_error(text) or _python_error(text) or _spark_error(text)
    sentence = _SQL_STATE.sub("", sentence).strip()
    if len(sentence) > _MOST_CHARACTERS:
        sentence = sentence[: _MOST_CHARACTERS - 1] + "…"
    is_lasting = (
        kind in _PERMANENT
        or _RAISED in text
        or (kind == "BrokerRefused" and _REFUSED.search(sentence) is not None)
        or _OTHER_CHECKPOINT.search(f"{kind} {sentence}") is not None
    )
    return Failure(kind, sentence, is_retryable=not is_lasting)


def _java_error(text: str) -> tuple[str, str] | None:
    """Return class and cause of the Java exception of a py4j call in *text*; None if none."""
    trace = text[text.rfind(_CALLED) :] if _CALLED in text else ""
    # The first match is the exception itself, the last one its root cause.
    found = _RAISED_IN_JAVA.findall(trace)
    # A Python error in the trace says more than the Java exception around it: `_python_error`.
    if not found or _TRACEBACK in trace or _OWN_ERROR.search(trace):
        return None
    kind, sentence = _spark_error(_bare(found[0]) if _SPARK_WORD.search(found[0]) else found[0])
    cause = _bare(found[-1])
    sentence = _SQL_STATE.sub("", sentence).strip().rstrip(".")
    return kind, sentence if cause in found[0] else f"{sentence}: {cause}"


def _bare(error: str) -> str:
    """Return *error* without leading Java class names; a mere class name is returned as it is."""
    while (found := _JAVA_CLASS.match(error)) is not None:
        error = error[found.end() :]
    return error


def _python_error(text: str) -> tuple[str, str] | None:
    """Return class and first line of the last Python error in *text*; None if there is none."""
    if _TRACEBACK not in text:
        own = _OWN_ERROR.findall(text)  # raised under `without_traceback`
        return own[-1] if own else None
    lines = text[text.rindex(_TRACEBACK) :].splitlines()[1:]
    for line in lines:
        found = _PYTHON_ERROR.fullmatch(line.strip()) if not line.startswith((" ", "\t")) else None
        if found is not None:
            return found[1].rpartition(".")[2], found[2] or ""
    return None


def _spark_error(text: str) -> tuple[str, str]:
    """Return the class and first line of Spark's error *text*, without the query's id and state."""
    cause = text.rpartition(_ENDED)[2]
    found = _SPARK_CLASS.match(cause)
    kind = "Spark" if found is None else found[1]
    line = next(iter((cause if found is None else cause[found.end() :]).strip().splitlines()), "")
    java = _JAVA_CLASS.match(line)
    if found is None and java is not None:
        kind, line = java[1], line[java.end() :]
    return kind, line
