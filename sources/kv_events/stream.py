"""The sockets of one rank's KV event stream: live batches, and replays of what was missed."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

import structlog
import zmq
import zmq.asyncio

from schemas.caches import KvEvent
from sources.boots import Boot
from sources.kv_events.config import KvEventsConfig
from sources.kv_events.follower import RankFollower
from sources.kv_events.wire import Batch, Malformed, decode, is_end_of_replay, replay_request
from transport.clock import monotonic_ms, now_ms

log = structlog.get_logger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_REPLAY_BYTES = 512 * 1024 * 1024
_QUEUED_MESSAGES = 10_000
_BATCHES_BETWEEN_BREATHS = 64
_LOOK_TIMEOUT_S = 2.0
_REST_MS = 15_000.0
_REPLAYS, _REPLAYS_WITHIN_MS = 10, 60_000.0


class KvStream:
    """Follows the stream of one rank's sockets; ``run`` it as a task.

    A socket that several ranks publish to (engines may connect to one address) is told apart by the rank in
    each batch; a batch that names none is of this stream's own rank.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        config: KvEventsConfig,
        rank: int,
        *,
        follower: Callable[[int], RankFollower],
        boot: Callable[[], Boot | None],
        emit: Callable[[KvEvent], None],
        look_after_s: float = 5.0,
        replay_timeout_s: float = 5.0,
    ) -> None:
        self._context = context
        self._endpoint, self._binds, self._topic = config.endpoint_of(rank), config.binds, config.topic
        self._replay_endpoint = config.replay_of(rank)
        self.rank = rank
        self._new_follower = follower
        self._boot = boot
        self._emit = emit
        self._look_after_s = look_after_s
        self._replay_timeout_s = replay_timeout_s
        self._replays: deque[float] = deque(maxlen=_REPLAYS)
        self._rest_until_ms = 0.0
        self._told: set[str] = set()
        self.followers: dict[int, RankFollower] = {}
        self.malformed: Counter[str] = Counter()
        """Messages that could not be read, by where they came from: live or replay."""
        self.replays_failed = 0

    async def run(self) -> None:
        """Follow until cancelled; raises zmq.ZMQError where the address can't be used at all."""
        socket = self._context.socket(zmq.SUB)
        try:
            socket.linger = 0
            socket.rcvhwm = _QUEUED_MESSAGES
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
            socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
            socket.subscribe(self._topic)
            if self._binds:
                socket.bind(self._endpoint)
            else:
                socket.connect(self._endpoint)
            self._follower(self.rank)
            await self._listen(socket)
        finally:
            socket.close()

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        """Live batches as they come; where none comes for a while, a look whether one was missed."""
        await self._look()
        taken = 0
        while True:
            if not await socket.poll(int(self._look_after_s * 1000)):
                await self._look()
                continue
            await self._take(await socket.recv_multipart())
            taken += 1
            if taken % _BATCHES_BETWEEN_BREATHS == 0:
                await asyncio.sleep(0)

    async def _take(self, frames: list[bytes]) -> None:
        try:
            batch = decode(frames)
        except Malformed as error:
            # Its number shows as a gap with the next batch, so what it said is not silently missing.
            self._note_malformed("live", error)
            return
        follower = self._follower(self.rank if batch.rank is None else batch.rank)
        events, ask_from = follower.live(batch, self._boot(), now_ms())
        await self._tell(follower, events, ask_from, batch)

    async def _look(self) -> None:
        """Was the last batch lost, or did the engine restart without a word since?"""
        for follower in list(self.followers.values()):
            events, ask_from = follower.tick(self._boot(), now_ms())
            await self._tell(follower, events, ask_from, None)

    async def _tell(
        self, follower: RankFollower, events: list[KvEvent], ask_from: int | None, live: Batch | None
    ) -> None:
        asked = 0
        while True:
            for event in events:
                self._emit(event)
            self._tell_trouble(follower)
            if ask_from is None:
                return
            asked += 1
            batches = await self._replay(ask_from, looking=live is None) if asked <= 2 else None
            events, ask_from = follower.replayed(batches, live, self._boot(), now_ms())

    async def _replay(self, start_seq: int, *, looking: bool) -> list[Batch] | None:
        """All batches from this number on that the engine still has; None where it can't be asked."""
        if self._replay_endpoint is None:
            return None
        timeout_s = min(_LOOK_TIMEOUT_S, self._replay_timeout_s)
        if not looking:
            timeout_s = self._replay_timeout_s
            if not self._may_ask(monotonic_ms()):
                return None
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.linger = 0
            socket.rcvhwm = 0
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.connect(self._replay_endpoint)
            await socket.send_multipart(replay_request(start_seq))
            async with asyncio.timeout(timeout_s):
                return await self._collect(socket)
        except TimeoutError:
            self.replays_failed += 1
            if not looking:
                self._rest_until_ms = monotonic_ms() + _REST_MS
            return None
        finally:
            socket.close()

    def _may_ask(self, now: float) -> bool:
        """Live batches wait while we ask: not for one that is silent, nor for a stream that is all gaps."""
        often = len(self._replays) == _REPLAYS and now - self._replays[0] < _REPLAYS_WITHIN_MS
        if often or now < self._rest_until_ms:
            return False
        self._replays.append(now)
        return True

    async def _collect(self, socket: zmq.asyncio.Socket) -> list[Batch] | None:
        batches: list[Batch] = []
        size = 0
        while True:
            frames = await socket.recv_multipart()
            if is_end_of_replay(frames):
                return batches
            size += sum(map(len, frames))
            if size > MAX_REPLAY_BYTES:
                self.replays_failed += 1
                return None
            try:
                batches.append(decode(frames))
            except Malformed as error:
                self._note_malformed("replay", error)
            if len(batches) % _BATCHES_BETWEEN_BREATHS == 0:
                await asyncio.sleep(0)

    def _follower(self, rank: int) -> RankFollower:
        if rank not in self.followers:
            self.followers[rank] = self._new_follower(rank)
        return self.followers[rank]

    def _note_malformed(self, where: str, error: Malformed) -> None:
        if not self.malformed[where]:
            log.warning("kv_batch_malformed", endpoint=self._endpoint, where=where, reason=str(error))
        self.malformed[where] += 1

    def _tell_trouble(self, follower: RankFollower) -> None:
        reason = follower.view.unusable
        if reason and reason not in self._told:
            self._told.add(reason)
            log.error("kv_events_unusable", instance=follower.instance, rank=follower.rank, reason=reason)
