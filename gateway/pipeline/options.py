"""Options of the format `nsq`: settings in camel case, and hints for options of other formats."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeVar

from pydantic_settings import BaseSettings

from gateway.errors import SettingRefused, SettingsError
from gateway.pipeline import FORMAT
from gateway.protocol.wire import is_valid_name
from gateway.settings.loader import SettingNaming, is_hidden, load
from gateway.settings.nsqd import NsqdSettings
from gateway.settings.pipeline import NAMES

Side = Literal["source", "sink"]


class ForeignOption(NamedTuple):
    """An option of another format, such as Kafka, that a user may try here."""

    option: str
    """Name of the option in that format."""
    advice: str
    """Text on the option to use instead."""


_NSQD = "use nsqdTcpAddress instead, or lookupdHttpAddress if there is an nsqlookupd"
_NO_OFFSETS = (
    "NSQ has no offsets: a channel holds every message that was published after it was created and "
    "is not finished yet; omit it, and create the channel before the producers start"
)
_BATCH = "use maxRowsPerBatch instead: the maximum number of rows in a batch"
_TIME = "use batchS instead: the time from one batch to the next"
_CHANNEL = "use channel instead"
_TOPIC = "use topic instead; separate several by commas"
_PARTITIONS = "use partitions instead: the number of tasks of one batch"
_TLS = "use nsqdTlsV1 instead, with nsqdTlsRootCaFile, nsqdTlsCert and nsqdTlsKey"
_SECRET = "use authSecretFile instead: the path of a file with the secret"
_CLIENT_SETTING = "a setting of Kafka's clients that nsqd does not have; omit it"

_COMMON = {
    "kafka.bootstrap.servers": _NSQD,
    "bootstrap.servers": _NSQD,
    "kafka.security.protocol": _TLS,
    "kafka.client.id": "use clientId instead",
    "includeHeaders": "an NSQ message has a body and no headers; omit it",
}
_BY_SIDE: dict[Side, dict[str, str]] = {
    "source": {
        "subscribe": _TOPIC,
        "assign": _TOPIC,
        "subscribePattern": "NSQ has no patterns; name each topic by the option topic",
        "maxOffsetsPerTrigger": _BATCH,
        "maxFilesPerTrigger": _BATCH,
        "maxBytesPerTrigger": _BATCH,
        "minOffsetsPerTrigger": _TIME,
        "maxTriggerDelay": _TIME,
        "startingOffsets": _NO_OFFSETS,
        "startingOffsetsByTimestamp": _NO_OFFSETS,
        "startingTimestamp": _NO_OFFSETS,
        "endingOffsets": _NO_OFFSETS,
        "endingOffsetsByTimestamp": _NO_OFFSETS,
        "endingTimestamp": _NO_OFFSETS,
        "failOnDataLoss": "nothing is finished before its batch is committed; omit it",
        "kafka.group.id": _CHANNEL,
        "group.id": _CHANNEL,
        "groupIdPrefix": _CHANNEL,
        "minPartitions": _PARTITIONS,
        "maxRecordsPerPartition": _PARTITIONS,
        "path": "nsq has no paths; name the topics by the option topic",
    },
    "sink": {
        "kafka.batch.size": "use batchBytes or batchRows instead",
        "kafka.linger.ms": "a task fills each batch from its rows; omit it",
        "kafka.acks": "nsqd answers every batch, and a task waits for it; omit it",
        "kafka.delivery.timeout.ms": "use answerTimeoutMs instead",
        "kafka.compression.type": "use nsqdSnappy or nsqdDeflate instead",
        "path": "nsq has no paths; name the topic by the option topic",
    },
}
_PREFIXES = {"kafka.ssl.": _TLS, "kafka.sasl.": _SECRET, "kafka.": _CLIENT_SETTING}


def foreign_option(option: str, side: Side) -> ForeignOption | None:
    """
    Return what to use instead of *option*, if it is an option of another format; else None.

    Case is ignored.
    """
    lowered = option.lower()
    for name, advice in (_COMMON | _BY_SIDE[side]).items():
        if name.lower() == lowered:
            return ForeignOption(name, advice)
    for prefix, advice in _PREFIXES.items():
        if lowered.startswith(prefix):
            return ForeignOption(option, advice)
    return None


__all__ = [
    "FORMAT",
    "OPTIONS",
    "as_options",
    "check_name",
    "option_of",
    "options_of",
    "read_options",
    "require_nsqd",
]

SettingsT = TypeVar("SettingsT", bound=NsqdSettings)

_FLAG = re.compile(r"--([a-z][a-z0-9-]*)")
_BETWEEN_WORDS = re.compile("[-_. ]")


def option_of(name: str) -> str:
    """Return the option for the setting *name*, for example maxInFlight for max_in_flight."""
    return re.sub("_(.)", lambda found: found[1].upper(), name)


OPTIONS = SettingNaming("option", option_of)


def read_options(
    kind: type[SettingsT], options: Mapping[str, str], side: Side, also: Iterable[str] = ()
) -> SettingsT:
    """
    Return the settings for *options*; the environment may set the others.

    Args:
        kind: Class of the settings.
        options: Values by option name; the case of names does not matter.
        side: Source or sink, for hints in errors.
        also: Names of options that the caller handles; the error for an unknown option lists them.

    Raises:
        SettingsError: An option is unknown, a value is invalid, a secret is given as an option, or
            nsqd's address is missing or given in two ways.
    """
    given: dict[str, str] = {}
    names = {option_of(name).lower(): name for name in kind.model_fields}
    for option, value in options.items():
        name = names.get(option.lower())
        if name is None:
            raise _unknown(kind, option, side, also)
        if is_hidden(kind.model_fields[name]):
            reason = "options appear in plans and logs; use authSecretFile, or the environment"
            raise SettingRefused(option_of(name), reason)
        given[name] = value
    with as_options(kind):
        settings = load(kind, given, naming=OPTIONS).settings
    require_nsqd(settings, option_of)
    return settings


def _unknown(
    kind: type[NsqdSettings], option: str, side: Side, also: Iterable[str]
) -> SettingRefused:
    """Return the error for the unknown *option*, with the likely option or what to use instead."""
    foreign = foreign_option(option, side)
    if foreign is not None:
        return SettingRefused(foreign.option, foreign.advice)
    fields = kind.model_fields.items()
    known = {option_of(name) for name, field in fields if not is_hidden(field)} | set(also)
    # Compare without case and separators: Spark, TOML, nsqd and flags spell names differently.
    by_spelling = {_bare(name): name for name in known}
    likely = difflib.get_close_matches(_bare(option), list(by_spelling), n=1)
    meant = f"; did you mean {by_spelling[likely[0]]}?" if likely else ""
    reason = f"the format {FORMAT} has no such option{meant}"
    return SettingRefused(option, f"{reason}; known options: {', '.join(sorted(known))}")


def _bare(name: str) -> str:
    return _BETWEEN_WORDS.sub("", name).lower()


@contextmanager
def as_options(kind: type[NsqdSettings]) -> Iterator[None]:
    """
    Context manager: a SettingsError of the block names options of Spark, not command-line flags.

    For example, --max-in-flight becomes maxInFlight, if max_in_flight is a setting of *kind*.
    """

    def option(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return option_of(name) if name in kind.model_fields else found[0]

    try:
        yield
    except SettingsError as error:
        error.args = (_FLAG.sub(option, str(error)),)
        error.name = _FLAG.sub(option, error.name)
        raise


def require_nsqd(settings: NsqdSettings, spell: Callable[[str], str]) -> None:
    """
    Raise SettingRefused if nsqd's address is missing or given in two ways.

    *spell* returns a setting's name as the user knows it: an option, or a flag.
    """
    nsqd, lookupd = spell("nsqd_tcp_address"), spell("lookupd_http_address")
    if not settings.has_nsqd_address:
        raise SettingRefused(nsqd, f"the address of nsqd is required: set this, or {lookupd}")
    if settings.nsqd_tcp_address and settings.lookupd_http_address:
        reason = (
            f"it cannot be combined with {nsqd}: an nsqd found both ways would get two "
            "connections, and its messages would be counted twice; omit one of them (it may be set "
            "in the environment or in a file)"
        )
        raise SettingRefused(lookupd, reason)


def options_of(settings: BaseSettings, kind: type[NsqdSettings]) -> dict[str, str]:
    """
    Return the values in *settings* of the fields that *kind* has, as options.

    Defaults are omitted, and secrets, because options appear in Spark's plans and logs.
    """
    given: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        value = getattr(settings, name)
        if value == field.default or is_hidden(field):
            continue
        is_list = isinstance(value, tuple)
        given[option_of(name)] = ",".join(map(str, value)) if is_list else _text_of(value)
    return given


def _text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_name(option: str, name: str) -> None:
    """Raise SettingsError if *name* is not a valid topic or channel name."""
    if not is_valid_name(name.encode()):
        raise SettingsError(option, name, allowed=NAMES)
