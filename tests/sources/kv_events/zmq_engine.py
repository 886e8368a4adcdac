"""A process that publishes KV events the way vLLM does; it takes commands on stdin, one JSON a line.

``{"events": [...], "drop": false}`` publishes a batch (or only keeps it for replays), ``{"damage": true}``
sends one that nobody can read. Each command is answered with the batch's number on stdout.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import msgspec
import zmq


def main(endpoint: str, replay: str, connect: bool, rank: int) -> None:
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    (publisher.connect if connect else publisher.bind)(endpoint)
    buffer: list[tuple[int, bytes]] = []
    threading.Thread(target=answer_replays, args=(context, replay, buffer), daemon=True).start()
    for seq, line in enumerate(sys.stdin):
        command: dict[str, Any] = json.loads(line)
        payload = msgspec.msgpack.encode([time.time(), command.get("events", []), rank])
        if command.get("damage"):
            payload = b"\xc1 not msgpack"
        buffer.append((seq, payload))
        if not command.get("drop"):
            publisher.send_multipart([b"kv-events", seq.to_bytes(8, "big"), payload])
        sys.stdout.write(f"{seq}\n")
        sys.stdout.flush()


def answer_replays(context: zmq.Context[Any], replay: str, buffer: list[tuple[int, bytes]]) -> None:
    router = context.socket(zmq.ROUTER)
    router.bind(replay)
    while True:
        client, _, start = router.recv_multipart()
        for seq, payload in list(buffer):
            if seq >= int.from_bytes(start, "big"):
                router.send_multipart([client, b"", seq.to_bytes(8, "big"), payload])
        router.send_multipart([client, b"", (-1).to_bytes(8, "big", signed=True), b""])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "connect", int(sys.argv[4]))
