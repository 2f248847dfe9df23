"""
Identify callers by the access file.

`AccessControl` reads the file again when it changes, and keeps the verified identities of tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gateway.access.jwks import JwksClient, JwksOptions
from gateway.access.keys import KeySet, KeysRefused, parse_jwks, read_key_file
from gateway.access.policy import (
    UNKNOWN_ISSUER,
    AccessFileRefused,
    GrantSource,
    GrantsRefused,
    Issuer,
    Policy,
    read_policy,
)
from gateway.access.rights import KEY_ISSUER, Identity
from gateway.access.tokens import (
    Refusal,
    TokenIssuer,
    TokenRefused,
    VerifiedToken,
    spend_a_signature_check,
    verify_token,
)
from gateway.aio import spawn
from gateway.credentials import Secret
from gateway.errors import SettingsError
from gateway.files import FileFingerprint, FileUnusable, file_fingerprint, read_small_file
from gateway.telemetry import LabelLimiter, fast_counter, gauge, get_logger

CHECK_INTERVAL_S = 1.0
"""Time between checks for changed files."""
RETRY_INTERVAL_S = 10.0
"""Time between attempts to read files that were refused and have not changed."""
START_TIMEOUT_S = 5.0
"""Maximum time that `AccessControl.start` waits for the keys of issuers."""
MAX_IDENTITIES = 10_000
"""Maximum verified tokens that are kept."""

_REFUSAL_LOG_INTERVAL_S = 1.0
_MAX_ISSUER_LABELS = 64

_CHECKS = fast_counter(
    "access_checks_total",
    "Tokens and API keys that were checked, by issuer (of the access file; key: an API key; "
    "unknown) and result: ok, or why it was refused.",
    ["issuer", "result"],
)
_RELOADS = fast_counter(
    "access_reloads_total",
    "Changes of the access file, or of the key files that it names, by result: ok or refused.",
    ["result"],
    zeros=[("ok",), ("refused",)],
)
_LAST_SUCCESSFUL = gauge(
    "access_reload_last_successful",
    "1 if the newest version of the access file is in use; 0 if it was refused, and the version "
    "before it is in use.",
)
_LAST_SUCCESSFUL.set(1)  # without an access file nothing fails
_LAST_SUCCESS = gauge(
    "access_reload_last_success_timestamp_seconds",
    "Time when the access file was last read successfully, in seconds since 1970; 0: there is no "
    "access file.",
)

logger = get_logger()


class Explanation(NamedTuple):
    """Who a caller is, and where each of its grants comes from."""

    identity: Identity
    sources: Sequence[GrantSource]


class _Files(NamedTuple):
    """The access file and the key files that it names, as they were read."""

    policy: Policy
    keys: Mapping[str, KeySet]
    """By issuer, for those with a file."""
    fingerprints: Mapping[str, FileFingerprint]
    """By path; taken before the contents were read."""


class _Cached(NamedTuple):
    """A verified token."""

    identity: Identity
    valid_from: float
    label: tuple[str, str]


class AccessControl:
    """
    Identify callers by the access file at *path*.

    Call `load` first, then `start`, and `stop` last.

    Args:
        path: The access file.
        clock: Returns the time in seconds since 1970.
        jwks: How keys of issuers with a `jwks_url` are requested.
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], float] = time.time,
        jwks: JwksOptions | None = None,
    ) -> None:
        self._path = path
        self.clock = clock
        self._jwks_options = jwks or JwksOptions()
        self._listeners: list[Callable[[], None]] = []
        self._files = _Files(Policy(), {}, {})
        self._clients: dict[str, JwksClient] = {}
        """By issuer, for those with a `jwks_url`."""
        self._issuers: Mapping[str, TokenIssuer] = {}
        self._identities: dict[bytes, _Cached] = {}
        """By the SHA-256 of the token, the oldest first."""
        self._labels = LabelLimiter(_MAX_ISSUER_LABELS)
        self._refusals = _RefusalLog()
        self._refused_files: Mapping[str, FileFingerprint] = {}
        """The last version of the files that was refused."""
        self._retry_at = 0.0
        self._logged_error = ""
        self._task: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def policy(self) -> Policy:
        """The policy in use."""
        return self._files.policy

    def load(self) -> None:
        """Read the file for the first time; raises SettingsError if it is not valid."""
        self._use(_read_files(self._path))
        self._on_loaded()

    async def start(self) -> list[str]:
        """
        Fetch the keys of issuers, and watch the file and the keys for changes.

        Return warnings, such as one for each issuer whose keys could not be fetched in time.
        """
        clients = list(self._clients.values())
        for client in clients:
            client.start()
        self._task = spawn("watch the access file", self._watch())
        with suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S):
                for client in clients:
                    await client.wait_for_answer()
        return [
            *self.policy.warnings,
            *(
                f"the keys of {client.issuer.name} are not available, its tokens are refused "
                f"until they are: {client.issuer.jwks_url}: {client.last_error}"
                for client in clients
                if client.last_error
            ),
        ]

    async def stop(self) -> None:
        """Stop watching; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        for client in self._clients.values():
            await client.stop()
        if self._stopping:
            await asyncio.wait(self._stopping)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call *callback* after each change of the file, or of an issuer's keys."""
        self._listeners.append(callback)

    def identify(self, secret: Secret) -> Identity:
        """
        Return the identity of the caller that presented *secret*, a token or an API key.

        Raises:
            CredentialRefused: It is not valid, or no longer.
        """
        value = secret.reveal()
        digest = hashlib.sha256(value).digest()
        now = self.clock()
        cached = self._identities.get(digest)
        # Compared at each use: the clock may be set forwards and back.
        if cached is None or not cached.valid_from <= now < cached.identity.expires_at:
            cached = self._verify(secret, value, digest, now)
        _CHECKS.counts[cached.label] += 1
        return cached.identity

    def explain(self, secret: Secret) -> Explanation:
        """
        Return whose *secret* is, and the sources of its grants.

        Raises:
            CredentialRefused: It is not valid.
            GrantsRefused: The grants in a token are not valid; the text has values of the token.
        """
        value = secret.reveal()
        key = self.policy.keys.get(hashlib.sha256(value).digest())
        if key is not None or b"." not in value:
            identity = self.identify(secret)
            source = f"the key {identity.name} (line {key.line if key else 0})"
            sources = [GrantSource(grant, source) for grant in identity.rights.grants]
            return Explanation(identity, sources)
        token = verify_token(value, self._issuers, now=self.clock())
        sources = list(self.policy.grants_of(token.issuer, token.claims))
        return Explanation(self._identity_of(token), sources)

    def _verify(self, secret: Secret, value: bytes, digest: bytes, now: float) -> _Cached:
        """Return the identity of *secret*, and keep it; raises CredentialRefused."""
        self._identities.pop(digest, None)
        refused: TokenRefused
        try:
            key = self.policy.keys.get(digest)
            if key is not None:
                identity, valid_from = key.identity, 0.0
                if now >= identity.expires_at:
                    raise self._refused_key(Refusal.EXPIRED)
            elif b"." not in value:
                raise self._refused_key(Refusal.UNKNOWN_KEY)
            else:
                token = verify_token(value, self._issuers, now=now)
                identity, valid_from = self._identity_of(token), token.valid_from
        except TokenRefused as error:
            refused = error
        else:
            issuer = self._labels.label_of(identity.issuer)
            cached = _Cached(identity, valid_from, (issuer, "ok"))
            if len(self._identities) >= MAX_IDENTITIES:
                del self._identities[next(iter(self._identities))]
            self._identities[digest] = cached
            return cached
        self._on_refused(secret, refused)
        raise refused

    def _refused_key(self, refusal: Refusal) -> TokenRefused:
        # A refused token takes the time of a check.
        spend_a_signature_check(self._issuers)
        return TokenRefused(refusal, KEY_ISSUER)

    def _identity_of(self, token: VerifiedToken) -> Identity:
        is_valid = True
        try:
            rights = self.policy.rights(token.issuer, token.claims)
        except GrantsRefused:
            is_valid = False
        if not is_valid:
            raise TokenRefused(Refusal.GRANTS, token.issuer.name)
        return Identity(token.issuer.name, token.subject, rights, token.expires_at)

    def _on_refused(self, secret: Secret, refused: TokenRefused) -> None:
        issuer = refused.issuer or UNKNOWN_ISSUER
        label = self._labels.label_of(issuer)
        _CHECKS.counts[label, refused.refusal.name.lower()] += 1
        if refused.refusal is Refusal.UNKNOWN_SIGNING_KEY and issuer in self._clients:
            self._clients[issuer].request()
        self._refusals.log(refused.refusal, issuer, secret)

    # Changes of the files and of keys.

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            found = {path: file_fingerprint(path) for path in self._files.fingerprints}
            if found == self._files.fingerprints:
                # Also if a version that was refused has been undone.
                if self._logged_error:
                    self._on_loaded()
            elif found != self._refused_files or time.monotonic() >= self._retry_at:
                await self._reload(found)

    async def _reload(self, fingerprints: Mapping[str, FileFingerprint]) -> None:
        try:
            # A large file takes tens of milliseconds.
            files = await asyncio.to_thread(_read_files, self._path)
        except SettingsError as error:
            self._on_refused_file(error)
            # Not each second, if nothing changes. But a key file that only the refused version
            # names is not watched, and reading may have failed for want of a descriptor.
            self._put_off(fingerprints)
            return
        except Exception:
            # A bug. The watch goes on: the next version may be read again.
            logger.exception("access file not read, keeping the previous version", file=self._path)
            self._logged_error = "unexpected"
            _LAST_SUCCESSFUL.set(0)
            self._put_off(fingerprints)
            return
        self._use(files)
        self._on_loaded()
        _RELOADS.counts["ok",] += 1
        logger.info(
            "access file reloaded",
            file=self._path,
            issuers=len(files.policy.issuers),
            keys=len(files.policy.keys),
            rules=len(files.policy.rules),
        )
        for warning in files.policy.warnings:
            logger.warning("access file warning", text=warning)
        self._notify()

    def _put_off(self, fingerprints: Mapping[str, FileFingerprint]) -> None:
        """Read this version again only after `RETRY_INTERVAL_S`."""
        self._refused_files = fingerprints
        self._retry_at = time.monotonic() + RETRY_INTERVAL_S

    def _on_refused_file(self, error: SettingsError) -> None:
        _LAST_SUCCESSFUL.set(0)
        if str(error) == self._logged_error:
            return
        self._logged_error = str(error)
        _RELOADS.counts["refused",] += 1
        logger.error(
            "access file refused, keeping the previous version",
            file=self._path,
            line=error.line if isinstance(error, AccessFileRefused) else None,
            reason=str(error),
        )

    def _on_loaded(self) -> None:
        self._logged_error = ""
        self._refused_files = {}
        _LAST_SUCCESSFUL.set(1)
        _LAST_SUCCESS.set(time.time())

    def _use(self, files: _Files) -> None:
        """Use *files* from now on; the keys of issuers that stay are kept."""
        is_running = self._task is not None
        before, self._clients = self._clients, {}
        for name, issuer in files.policy.issuers.items():
            if issuer.jwks_url is None:
                continue
            kept = before.get(name)
            if kept is not None and kept.is_for(issuer):
                del before[name]
                self._clients[name] = kept
                continue
            client = JwksClient(issuer, self._jwks_options, self._on_keys_changed)
            self._clients[name] = client
            if is_running:
                client.start()
        for name, client in before.items():
            if name not in self._clients:
                client.forget_metrics()
            if is_running:
                stopping = spawn("stop requesting keys", client.stop())
                self._stopping.add(stopping)
                stopping.add_done_callback(self._stopping.discard)
        self._files = files
        for name in files.policy.issuers:
            _CHECKS.init_series([(self._labels.label_of(name), "ok")])
        self._collect_keys()

    def _on_keys_changed(self) -> None:
        self._collect_keys()
        self._notify()

    def _collect_keys(self) -> None:
        files = self._files
        self._issuers = {
            name: TokenIssuer(
                issuer,
                self._clients[name].keys if name in self._clients else files.keys[name],
            )
            for name, issuer in files.policy.issuers.items()
        }
        # What was verified with a key may not be valid without it.
        self._identities.clear()

    def _notify(self) -> None:
        for callback in self._listeners:
            try:
                callback()
            except Exception:
                # Whatever is wrong there, the file and the keys are watched further.
                logger.exception("access change not passed on")


def _read_files(path: str) -> _Files:
    """Read the access file and its key files; raises SettingsError."""
    fingerprints = {path: file_fingerprint(path)}
    try:
        content = read_small_file(path)
    except FileUnusable as error:
        allowed = f"the path of a readable file; {error}"
        raise SettingsError("--access-file", path, allowed=allowed) from error
    policy = read_policy(content, path)
    keys = {}
    for name, issuer in policy.issuers.items():
        file = issuer.jwks_file or issuer.key_file
        if file is not None:
            # Relative to the access file, so that both can be mounted together.
            key_path = str(Path(path).parent / file)
            fingerprints[key_path] = file_fingerprint(key_path)
            keys[name] = _read_keys(path, issuer, key_path)
    return _Files(policy, keys, fingerprints)


def _read_keys(path: str, issuer: Issuer, key_path: str) -> KeySet:
    try:
        content = read_small_file(key_path)
        if issuer.key_file is not None:
            return read_key_file(content, issuer.algorithms)
        return parse_jwks(content, issuer.algorithms, allow_secrets=True)
    except (FileUnusable, KeysRefused) as error:
        which = "key_file" if issuer.key_file is not None else "jwks_file"
        problem = f"the {which} {key_path} of the issuer {issuer.name} is not usable: {error}"
        raise AccessFileRefused(path, issuer.line, problem) from error


class _RefusalLog:
    """Logs refused credentials, at most one line a second for each reason."""

    def __init__(self) -> None:
        self._not_before: dict[Refusal, float] = {}
        self._suppressed: dict[Refusal, int] = {}

    def log(self, refusal: Refusal, issuer: str, secret: Secret) -> None:
        """Log that *secret* was refused; lines left out are counted in the next one."""
        now = time.monotonic()
        if now < self._not_before.get(refusal, 0):
            self._suppressed[refusal] = self._suppressed.get(refusal, 0) + 1
            return
        self._not_before[refusal] = now + _REFUSAL_LOG_INTERVAL_S
        logger.info(
            "credential refused",
            reason=refusal.value,
            issuer=issuer,
            secret=secret.fingerprint,
            suppressed=self._suppressed.pop(refusal, 0),
        )
