"""
Registration of a broker with nsqlookupd, and the channels that nsqlookupd knows of a new topic.

Each nsqlookupd has one connection, which registers every topic and channel, also ephemeral ones,
and every change of them. A connection that fails is opened again, and registers everything again.

A new topic gets the channels that exist on other nsqds, so that they miss none of its messages.
nsqd asks nsqlookupd for them before it answers the first publish; here the topic keeps its
messages back meanwhile, and nobody waits. Ephemeral channels are left out: they end with their last
consumer.

Answers of nsqlookupd have a size and no frame type. Sources: nsqd/lookup.go; nsqd/lookup_peer.go;
nsqlookupd/lookup_protocol_v1.go.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from gateway.addresses import join_address, split_address
from gateway.aio import spawn
from gateway.broker.scheduler import NameChange
from gateway.broker.server import Server
from gateway.broker.topics import Topic, TopicRegistry
from gateway.errors import LookupFailed
from gateway.protocol.wire import NSQD_VERSION, is_ephemeral, is_valid_name
from gateway.telemetry import get_logger

if TYPE_CHECKING:
    import httpx

PING_INTERVAL_S = 15.0
"""As nsqd; nsqlookupd hides a node that is silent for 300 s."""
ANSWER_TIMEOUT_S = 5.0
"""Time limit for the answers to one batch of commands."""
_FIRST_DELAY_S, _MAX_DELAY_S = 0.25, 15.0
"""Time before a lost connection is opened again; it doubles with each failure."""
_BATCH_COMMANDS = 128
_MAX_ANSWER_BYTES = 65_536
_MAX_CHANNELS_BYTES = 1_048_576
"""Maximum answer with the channels of a topic, some 15 000 names of full length."""
_MAX_QUERIES = 8
_MAX_PORT = 65_535
_MAGIC = b"  V1"
_SIZE = struct.Struct(">i")
_HTTP_OK = 200

logger = get_logger()


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What nsqlookupd tells consumers about this broker; the body of IDENTIFY."""

    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    version: str = NSQD_VERSION


class _LookupdInfo(msgspec.Struct):
    """The answer to IDENTIFY, as far as it is used."""

    broadcast_address: str = ""
    http_port: int = 0
    version: str = ""


class _Channels(msgspec.Struct):
    """The answer to /channels; Go encodes a nil list as null."""

    channels: list[str] | None = None


_infos = msgspec.json.Decoder(_LookupdInfo)
_channels = msgspec.json.Decoder(_Channels)


class LookupdRegistration:
    """
    Keep nsqlookupds informed of the topics and channels of *server*.

    Args:
        server: The broker's server.
        identity: What nsqlookupd tells consumers.
        connect_timeout_s: Time limit for a connection to nsqlookupd, by TCP or HTTP.
        request_timeout_s: Time limit for one of its HTTP answers after that.
    """

    def __init__(
        self,
        server: Server,
        identity: Identity,
        *,
        connect_timeout_s: float,
        request_timeout_s: float,
    ) -> None:
        self._server = server
        self._identity = identity
        self._connect_timeout_s = connect_timeout_s
        self._query_timeout_s = connect_timeout_s + request_timeout_s
        self.addresses: list[str] = []
        """TCP addresses of the nsqlookupds, host:port, as they were set."""
        self._peers: dict[str, _Peer] = {}
        self._queries = asyncio.Semaphore(_MAX_QUERIES)
        self._lookups: set[asyncio.Task[None]] = set()
        self._http: httpx.AsyncClient | None = None
        server.registry.context.name_listeners.append(self._on_change)

    @property
    def http_urls(self) -> list[str]:
        """Where the nsqlookupds answer HTTP, of those that have said so."""
        return [peer.http_url for peer in self._peers.values() if peer.http_url is not None]

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Connect to those of *addresses* that are new, and disconnect from those left out."""
        self.addresses = list(addresses)
        for address in self._peers.keys() - set(self.addresses):
            self._peers.pop(address).close()
        for address in self.addresses:
            if address not in self._peers:
                self._peers[address] = _Peer(
                    address, self._server.registry, self._identity, self._connect_timeout_s
                )
        if self._peers and self._http is None:
            self._http = _http_client()

    async def stop(self) -> None:
        """Disconnect, so that nsqlookupd forgets this broker, and end all lookups."""
        tasks = [*self._lookups, *(peer.task for peer in self._peers.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._peers.clear()
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _on_change(self, change: NameChange) -> None:
        for peer in self._peers.values():
            peer.note(change)
        if change.is_deleted or change.channel or not self._peers:
            return
        urls = self.http_urls
        if not urls:
            logger.warning("no nsqlookupd to ask for the channels of a topic", topic=change.topic)
            return
        topic = self._server.registry.topics[change.topic]
        topic.is_held = True
        task = spawn("look up channels", self._create_known_channels(topic, urls))
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    async def _create_known_channels(self, topic: Topic, urls: Sequence[str]) -> None:
        """Create the channels that the nsqlookupds at *urls* know, and end the hold of *topic*."""
        try:
            found = await asyncio.gather(*(self._query(topic.name, url) for url in urls))
            # It may have been deleted meanwhile, and even created again.
            if self._server.registry.topics.get(topic.name) is topic:
                for channel in sorted(set(itertools.chain.from_iterable(found))):
                    topic.get_channel(channel, now=self._server.read_clocks().now)
        finally:
            topic.end_hold(now=self._server.read_clocks().now)
            self._server.schedule_delivery()

    async def _query(self, topic: str, url: str) -> list[str]:
        """Return the lasting channels that one nsqlookupd knows of *topic*; none if it fails."""
        try:
            # Counted from the creation of the topic, not from its turn: its messages wait.
            async with asyncio.timeout(self._query_timeout_s), self._queries:
                names = await self._fetch_channels(f"{url}/channels?topic={quote(topic)}")
        except Exception as error:  # noqa: BLE001 - no answer of nsqlookupd may hold a topic
            logger.warning(
                "nsqlookupd did not tell the channels of a topic",
                topic=topic,
                url=url,
                reason=str(error) or type(error).__name__,
            )
            return []
        return [name for name in names if is_valid_name(name.encode()) and not is_ephemeral(name)]

    async def _fetch_channels(self, url: str) -> list[str]:
        assert self._http is not None  # noqa: S101 - created with the first address
        body = bytearray()
        async with self._http.stream("GET", url) as answer:
            if answer.status_code != _HTTP_OK:
                raise LookupFailed(url, "status", f"status {answer.status_code}")
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > _MAX_CHANNELS_BYTES:
                    raise LookupFailed(url, "too_big", f"more than {_MAX_CHANNELS_BYTES} bytes")
        return _channels.decode(body).channels or []


def _http_client() -> httpx.AsyncClient:
    import httpx  # noqa: PLC0415 - slow to import, and not needed without nsqlookupd

    return httpx.AsyncClient(
        headers={
            "Accept": "application/vnd.nsq; version=1.0",
            # A compressed body may exceed the limit only after decompression.
            "Accept-Encoding": "identity",
        },
        trust_env=False,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=_MAX_QUERIES, max_keepalive_connections=0),
        timeout=None,  # noqa: S113 - `_query` limits the whole request
    )


class _Peer:
    """The connection to one nsqlookupd; it is opened at once, and again whenever it fails."""

    def __init__(
        self,
        address: str,
        registry: TopicRegistry,
        identity: Identity,
        connect_timeout_s: float,
    ) -> None:
        self.address = address
        self.http_url: str | None = None
        """Where nsqlookupd answers HTTP, as it says itself; None before it has said so."""
        self._registry = registry
        self._identity = identity
        self._connect_timeout_s = connect_timeout_s
        self._delay_s = _FIRST_DELAY_S
        self._is_identified = False
        self._registered: set[tuple[str, str]] = set()
        """Topic and channel of each registration; the channel is empty for the topic's own."""
        self._changed: dict[tuple[str, str], bool] = {}
        """Names to look at; True if one was deleted that nsqlookupd still has."""
        self._has_changes = asyncio.Event()
        self.task = spawn(f"nsqlookupd {address}", self._run())

    def close(self) -> None:
        """Disconnect."""
        self.task.cancel()

    def note(self, change: NameChange) -> None:
        """Remember to register or unregister a topic or channel."""
        if not self._is_identified:
            return  # everything is registered after the next IDENTIFY
        key = change.topic, change.channel
        if not change.is_deleted:
            self._changed.setdefault(key, False)
        elif key in self._registered:
            self._changed[key] = True
        else:
            self._changed.pop(key, None)
        self._has_changes.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._hold_connection()
            except (OSError, TimeoutError, LookupFailed, asyncio.IncompleteReadError) as error:
                reason = str(error) or type(error).__name__
            except (msgspec.MsgspecError, ValueError) as error:
                reason = f"invalid answer: {error}"
            finally:
                # Its HTTP address stays known, as in nsqd: a lookup may still succeed.
                self._is_identified = False
                self._registered.clear()
                self._changed.clear()
            logger.warning(
                "no connection to nsqlookupd",
                address=self.address,
                reason=reason,
                retry_in_s=self._delay_s,
            )
            await asyncio.sleep(self._delay_s)
            self._delay_s = min(2 * self._delay_s, _MAX_DELAY_S)

    async def _hold_connection(self) -> None:
        """Connect, register everything, then every change; raise when the connection fails."""
        host, port = split_address(self.address)
        async with asyncio.timeout(self._connect_timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
        try:
            await self._identify(reader, writer)
            while True:
                if self._changed:
                    await self._send_changes(reader, writer)
                elif not await self._wait_for_change(reader):
                    await self._expect_ok([b"PING\n"], reader, writer)
        finally:
            writer.close()

    async def _identify(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = msgspec.json.encode(self._identity)
        command = b"%bIDENTIFY\n%b%b" % (_MAGIC, _SIZE.pack(len(body)), body)
        (answer,) = await self._ask([command], reader, writer)
        if answer.startswith(b"E_"):
            raise self._failed(answer)
        info = _infos.decode(answer)
        self.http_url = _http_url(info)
        logger.info(
            "registered with nsqlookupd",
            address=self.address,
            version=info.version,
            http_address=self.http_url,
        )
        self._delay_s = _FIRST_DELAY_S
        self._is_identified = True
        for topic in self._registry.topics.values():
            self._changed[topic.name, ""] = False
            self._changed |= {(topic.name, channel): False for channel in topic.channels}

    async def _send_changes(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Register and unregister the oldest changes, at most `_BATCH_COMMANDS` names."""
        commands: list[bytes] = []
        for key in list(itertools.islice(self._changed, _BATCH_COMMANDS)):
            topic, channel = key
            name = f"{topic} {channel}".rstrip().encode("ascii")
            if self._changed.pop(key):
                commands.append(b"UNREGISTER %b\n" % name)
                self._registered.discard(key)
            if key not in self._registered and self._exists(topic, channel):
                commands.append(b"REGISTER %b\n" % name)
                self._registered.add(key)
        if commands:
            await self._expect_ok(commands, reader, writer)

    def _exists(self, topic: str, channel: str) -> bool:
        found = self._registry.topics.get(topic)
        return found is not None and (not channel or channel in found.channels)

    async def _wait_for_change(self, reader: asyncio.StreamReader) -> bool:
        """
        Wait for a change; return False if it is time for a PING.

        Raises:
            LookupFailed: nsqlookupd closed the connection, or sent something unasked.
        """
        self._has_changes.clear()
        changed = spawn("wait for topics and channels", self._has_changes.wait())
        end = spawn("wait for the end of nsqlookupd", self._wait_for_end(reader))
        waiting: set[asyncio.Task[Any]] = {changed, end}
        try:
            await asyncio.wait(
                waiting, timeout=PING_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
            )
            if end.done():
                raise LookupFailed(self.address, "unreachable", end.result())
            return changed.done()
        finally:
            for each in waiting:
                each.cancel()
            # The reader takes no second read before the first one has ended.
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait_for_end(self, reader: asyncio.StreamReader) -> str:
        """Return what ended the connection, between two answers."""
        try:
            data = await reader.read(_MAX_ANSWER_BYTES)
        except OSError as error:
            return str(error)
        return f"sent {data[:80]!r} unasked" if data else "closed the connection"

    async def _expect_ok(
        self,
        commands: Sequence[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        for answer in await self._ask(commands, reader, writer):
            if answer != b"OK":
                raise self._failed(answer)

    async def _ask(
        self,
        commands: Sequence[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> list[bytes]:
        """Send *commands* with one write; return the answer to each."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            writer.write(b"".join(commands))
            return [await self._read_answer(reader) for _ in commands]

    async def _read_answer(self, reader: asyncio.StreamReader) -> bytes:
        (size_bytes,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        if not 0 <= size_bytes <= _MAX_ANSWER_BYTES:
            detail = f"announces {size_bytes} bytes; the limit is {_MAX_ANSWER_BYTES} bytes"
            raise LookupFailed(self.address, "malformed", detail)
        return await reader.readexactly(size_bytes)

    def _failed(self, answer: bytes) -> LookupFailed:
        return LookupFailed(self.address, "malformed", f"answered {answer[:200]!r}")


def _http_url(info: _LookupdInfo) -> str | None:
    """Return the URL of nsqlookupd's HTTP API, without a path; None if it has none."""
    if not info.broadcast_address or not 0 < info.http_port <= _MAX_PORT:
        return None
    address = join_address(info.broadcast_address, info.http_port)
    split_address(address)
    return f"http://{address}"
