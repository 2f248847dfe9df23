"""A scripted broker that requires AUTH, like nsqd with an auth server."""

from __future__ import annotations

import asyncio

from gateway.protocol.commands import Auth, Command, Publish, Subscribe
from gateway.protocol.frames import OK, Response
from gateway.protocol.identify import AuthResponse, IdentifyResponse
from tests.support.brokers.scripted_broker import Peer, ScriptedBroker, refuse

_WAIT_S = 60.0


class AuthBroker(ScriptedBroker):
    """Accept the secrets in `grants` for their topics; `start` first, `stop` last."""

    def __init__(self) -> None:
        super().__init__()
        self.grants: dict[bytes, set[str]] = {}
        """Secret and the topics that it may publish to and subscribe to."""
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()
        """The secret of each AUTH, in order."""
        self._secrets: dict[Peer, bytes] = {}
        self.wants_auth(wants=True)
        self.on(Auth, self._auth)
        self.on(Subscribe, self._take)
        self.on(Publish, self._take)

    def wants_auth(self, *, wants: bool) -> None:
        """Set whether later connections require AUTH."""
        self.identifies_as(IdentifyResponse(auth_required=wants))

    async def asked_with(self) -> bytes:
        """Return the secret of the next AUTH."""
        async with asyncio.timeout(_WAIT_S):
            return await self.asked.get()

    def _auth(self, peer: Peer, command: Command) -> None:
        assert isinstance(command, Auth)
        self._secrets[peer] = command.secret
        if command.secret in self.grants:
            count = len(self.grants[command.secret])
            answer = AuthResponse(identity="somebody", permission_count=count)
            peer.send(Response(answer.to_json()))
        else:
            refuse("E_AUTH_FAILED", "AUTH failed")(peer, command)
        # Last: who waits for it finds everything done.
        self.asked.put_nowait(command.secret)

    def _take(self, peer: Peer, command: Command) -> None:
        assert isinstance(command, Subscribe | Publish)
        channel = command.channel if isinstance(command, Subscribe) else ""
        secret = self._secrets.get(peer)
        if secret is None or command.topic in self.grants.get(secret, ()):
            peer.send(OK)
            return
        verb = command.verb.decode()
        text = f'AUTH failed for {verb} on "{command.topic}" "{channel}"'
        refuse("E_UNAUTHORIZED", text)(peer, command)
