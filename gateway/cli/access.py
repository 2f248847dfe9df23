"""The commands ``nsq-gateway access``: check an access file, and make API keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import secrets
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from gateway.access.rights import Grant, Permission, Rights
from gateway.credentials import Secret, read_secret_file
from gateway.errors import CredentialRefused, SettingsError
from gateway.telemetry import configure_logging
from gateway.terminal import format_duration

if TYPE_CHECKING:
    from gateway.access.control import AccessControl, Explanation

REFUSED = 1
KEY_PREFIX = "nsq_"
"""Begin of API keys, so that scanners recognize one that was published by mistake."""

_KEY_BYTES = 32
_MAX_STDIN_BYTES = 65_536
_STDIN = "-"

_CHECK_EPILOG = """\b
Examples:
  nsq-gateway access check access.toml
  nsq-gateway access check access.toml --token-file token.txt
  get-token | nsq-gateway access check access.toml --token-file - \\
      --topic orders --channel billing --permission subscribe

Exit status: 0 the file and the token are valid, and --permission, if given, is allowed; 1 one of
them is not; 2 usage error."""

_KEY_EPILOG = """\b
Examples:
  nsq-gateway access key billing >> access.toml
  nsq-gateway access key billing --topic '^orders$' --channel '^billing$' \\
      --permission subscribe >> access.toml

The key is written to standard error, the entry to standard output. Exit status: 0 success,
2 usage error."""


@click.group()
def access() -> None:
    """
    Check the access file, and make API keys.

    The access file (serve --access-file) says who may do what: docs/access.md.
    """


class _Question(NamedTuple):
    """What shall be allowed."""

    permission: Permission
    topic: str
    channel: str | None

    def is_allowed_by(self, rights: Rights) -> bool:
        return rights.allows(self.permission, self.topic, self.channel)

    def __str__(self) -> str:
        channel = "" if self.channel is None else f", channel {self.channel}"
        return f"{self.permission} on topic {self.topic}{channel}"


@access.command(epilog=_CHECK_EPILOG)
@click.argument("file")
@click.option(
    "--token",
    metavar="TOKEN",
    help="A token or API key: who is it, until when, and what may it do? Other users of this "
    "machine can read a command line; better use --token-file.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="The same, from a file; - is standard input.",
)
@click.option("--topic", metavar="NAME", help="Is the permission granted on this topic?")
@click.option("--channel", metavar="NAME", help="… and on this channel of it?")
@click.option(
    "--permission",
    type=click.Choice([each.value for each in Permission]),
    help="The permission in question. Without it, all of them are shown.",
)
def check(
    *,
    file: str,
    token: str | None,
    token_file: str | None,
    topic: str | None,
    channel: str | None,
    permission: str | None,
) -> None:
    """
    Check the access file FILE; with a token, show what it may do, and why.

    The gateway reads the file in the same way. With a token or key, keys of issuers with a
    jwks_url are requested from there; otherwise nothing is. Nothing is changed.
    """
    from gateway.access.control import AccessControl  # noqa: PLC0415 - slow to import

    secret = _read_token(token, token_file)
    questions = _questions(secret, topic, channel, permission)
    # What goes wrong is printed here.
    configure_logging("console", "critical")
    control = AccessControl(file)
    try:
        control.load()
    except SettingsError as error:
        click.echo(f"not valid: {error}")
        sys.exit(REFUSED)
    policy = control.policy
    click.echo(
        f"{file} is valid: issuers: {len(policy.issuers)}, API keys: {len(policy.keys)}, rules: "
        f"{len(policy.rules)}"
    )
    for warning in policy.warnings:
        click.echo(f"warning: {warning}")
    if secret is not None:
        explanation = _explain(control, secret)
        _print_caller(explanation)
        verdicts = [_print_verdict(explanation, each) for each in questions]
        if permission is not None and not all(verdicts):
            sys.exit(REFUSED)


def _read_token(token: str | None, token_file: str | None) -> Secret | None:
    if token is not None and token_file is not None:
        raise click.UsageError("--token and --token-file exclude each other")
    if token_file == _STDIN:
        value = sys.stdin.buffer.read(_MAX_STDIN_BYTES).strip()
    elif token_file is not None:
        value = read_secret_file(token_file, "--token-file")[0].reveal().strip()
    elif token is not None:
        value = token.encode("utf-8", "surrogateescape").strip()
    else:
        return None
    if not value:
        raise click.UsageError("the token is empty")
    return Secret(value)


def _questions(
    secret: Secret | None, topic: str | None, channel: str | None, permission: str | None
) -> Sequence[_Question]:
    if secret is None and (topic, channel, permission) != (None, None, None):
        raise click.UsageError("say whose permission: add --token-file or --token")
    if topic is None:
        if channel is not None or permission is not None:
            raise click.UsageError("say on which topic: add --topic")
        return []
    if permission == Permission.SUBSCRIBE and channel is None:
        raise click.UsageError("say on which channel: add --channel")
    asked = list(Permission) if permission is None else [Permission(permission)]
    # Publishing and watching have no channel.
    with_channel = (Permission.SUBSCRIBE, Permission.ADMIN)
    return [_Question(each, topic, channel if each in with_channel else None) for each in asked]


def _explain(control: AccessControl, secret: Secret) -> Explanation:
    """Return who has *secret*; exit if it is refused."""
    from gateway.access.policy import GrantsRefused  # noqa: PLC0415 - slow to import

    async def ask() -> Explanation:
        try:
            # The warnings of the file are printed already.
            for warning in (await control.start())[len(control.policy.warnings) :]:
                click.echo(f"warning: {warning}")
            return control.explain(secret)
        finally:
            await control.stop()

    try:
        return asyncio.run(ask())
    except CredentialRefused as error:
        reason = error.reason
    except GrantsRefused as error:
        reason = f"the grants in the token are not valid: {error}"
    click.echo(f"refused: {reason}")
    sys.exit(REFUSED)


def _print_caller(explanation: Explanation) -> None:
    identity = explanation.identity
    click.echo(f"caller: {identity.name}")
    click.echo(f"issuer: {identity.issuer}")
    if math.isinf(identity.expires_at):
        click.echo("until: no end")
    else:
        until = datetime.fromtimestamp(identity.expires_at, UTC).isoformat(timespec="seconds")
        click.echo(f"until: {until} (in {format_duration(identity.expires_at - time.time())})")
    if not explanation.sources:
        click.echo("grants: none; no rule matches its claims")
    for grant, source in explanation.sources:
        click.echo(f"grant by {source}: {_as_toml(grant)}")


def _print_verdict(explanation: Explanation, question: _Question) -> bool:
    """Print whether *question* is allowed, and by what; return it."""
    for grant, source in explanation.sources:
        if question.is_allowed_by(Rights([grant])):
            click.echo(f"allowed: {question}; by {source}: {_as_toml(grant)}")
            return True
    click.echo(f"refused: {question}; no grant allows it")
    return False


@access.command(epilog=_KEY_EPILOG)
@click.argument("name")
@click.option("--topic", metavar="PATTERN", help="Pattern of topics, such as '^orders$'.")
@click.option(
    "--channel", "channels", metavar="PATTERN", multiple=True, help="Pattern of channels; several."
)
@click.option(
    "--permission",
    "permissions",
    type=click.Choice([each.value for each in Permission]),
    multiple=True,
    help="What the key allows; several.",
)
def key(
    *, name: str, topic: str | None, channels: Sequence[str], permissions: Sequence[str]
) -> None:
    """
    Make an API key for NAME, and its entry for the access file.

    The key is shown once. The access file has its SHA-256 only, from which nobody can tell the key.
    Without options, the entry has a grant as an example: replace TOPIC and CHANNEL in it.
    """
    from gateway.access.policy import AccessFileRefused, read_policy  # noqa: PLC0415

    if topic is None and (channels or permissions):
        raise click.UsageError("say on which topics: add --topic")
    if topic is not None and not permissions:
        raise click.UsageError("say what the key allows: add --permission")
    grant = Grant(
        topic=topic or "^TOPIC$",
        channels=tuple(channels) if topic else ("^CHANNEL$",),
        permissions=tuple(map(Permission, permissions))
        or (Permission.PUBLISH, Permission.SUBSCRIBE),
    )
    value = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    entry = (
        "[[key]]\n"
        f"name = {_quoted(name)}\n"
        f'sha256 = "{hashlib.sha256(value.encode()).hexdigest()}"\n'
        f"grants = [{_as_toml(grant)}]"
    )
    try:
        policy = read_policy(entry.encode())
    except AccessFileRefused as error:
        raise click.UsageError(error.problem) from error
    for warning in policy.warnings:
        click.echo(f"warning: {warning.partition(': ')[2]}", err=True)
    click.echo(f"The key, which nobody can show again:\n{value}", err=True)
    # A blank line, because the entry is added to a file.
    click.echo(f"\n{entry}")


def _as_toml(grant: Grant) -> str:
    parts = [f"topic = {_quoted(grant.topic)}"]
    if grant.channels:
        parts.append(f"channels = [{', '.join(map(_quoted, grant.channels))}]")
    parts.append(f"permissions = [{', '.join(map(_quoted, grant.permissions))}]")
    return f"{{ {', '.join(parts)} }}"


def _quoted(text: str) -> str:
    """Return *text* as a basic string of TOML, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)
