"""A running peer's control socket: `publish`, `tail` and `status` from other processes of the same user.

One request per connection, one JSON object per line in both directions, on a Unix socket with mode 0600:

    {"verb": "status"}                                     -> one object
    {"verb": "publish", "payload": HEX, "ttl_epochs": N,   -> {"examined": N, "expected": N} while it works,
     "timeout_s": N or null}                                  then {"address": HEX}
    {"verb": "tail", "since_ms": N or null}                -> {"listening": true}, then one object per item of this
                                                              moment and later, until the client disconnects
    {"verb": "query", "since_ms": N, "until_ms": N}        -> one object per unexpired message of this time

A response {"error": TEXT, "type": NAME} ends a request that failed; the name is that of the exception. A client that
disconnects cancels its request. At most `MAX_CLIENTS` are served at a time; a request that does not arrive within 5 s,
or is too long, is not served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from dovetail.model.errors import ConfigError, DovetailError
from dovetail.runtime.swarm_node import Evidence, Gap, Item, Message, Missed, SwarmNode
from dovetail.swarm.content import MAX_CONTENT_BYTES
from dovetail.swarm.pow import expected_hashes

MAX_REQUEST_BYTES: Final = 4 * MAX_CONTENT_BYTES
REQUEST_TIMEOUT_S: Final = 5.0
PROGRESS_S: Final = 0.2
MAX_CLIENTS: Final = 64
CONTROL_FILE: Final = "control.sock"
LAST_MS: Final = (1 << 48) - 1
"""The latest possible timestamp of a message."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's request."""

    verb: Literal["status", "publish", "tail", "query"]
    payload: str = ""
    ttl_epochs: int = 1
    timeout_s: float | None = None
    since_ms: int | None = None
    until_ms: int = LAST_MS


class ControlServer:
    """Answers on a Unix socket for one node."""

    def __init__(self, node: SwarmNode, path: Path) -> None:
        self._node = node
        self._path = path
        self._server: asyncio.Server | None = None
        self._clients = 0

    async def start(self) -> None:
        """Listen; a socket left behind by a crash is replaced."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._answer, self._path, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            raise ConfigError(f"control socket {self._path}: {error.strerror or error}") from None
        finally:
            os.umask(mask)

    async def stop(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                line = await reader.readline()
            if self._clients > MAX_CLIENTS:
                raise DovetailError(f"{MAX_CLIENTS} other requests are being served")
            request = msgspec.json.decode(line, type=Request)
            work = asyncio.ensure_future(self._perform(request, writer))
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            for task in (work, gone):
                task.cancel()
            await work
        except (DovetailError, ValueError) as error:
            with contextlib.suppress(ConnectionError):
                _write(writer, {"error": str(error), "type": type(error).__name__})
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._clients -= 1
            writer.close()

    async def _perform(self, request: Request, writer: asyncio.StreamWriter) -> None:
        match request.verb:
            case "status":
                endpoints = {"endpoints": self._node.endpoints, "journal_hops": self._node.journal.size}
                _write(writer, msgspec.to_builtins(self._node.status()) | endpoints)
            case "publish":
                await self._publish(request, writer)
            case "tail":
                await self._tail(request.since_ms, writer)
            case "query":
                for message in self._node.query(request.since_ms or 0, request.until_ms):
                    _write(writer, describe_item(message))
                    await writer.drain()
        await writer.drain()

    async def _publish(self, request: Request, writer: asyncio.StreamWriter) -> None:
        examined = 0

        def note(count: int) -> None:
            nonlocal examined
            examined = count

        task = asyncio.ensure_future(
            self._node.publish(
                bytes.fromhex(request.payload), request.ttl_epochs, timeout_s=request.timeout_s, progress=note
            )
        )
        try:
            while not (await asyncio.wait({task}, timeout=PROGRESS_S))[0]:
                _write(writer, {"examined": examined, "expected": expected_hashes(self._node.peer.rules.pow_target)})
                await writer.drain()
        finally:
            task.cancel()
        _write(writer, {"address": (await task).hex()})

    async def _tail(self, since_ms: int | None, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(self._node.subscribe()) as items:
            earlier = [] if since_ms is None else self._node.query(since_ms, LAST_MS)
            _write(writer, {"listening": True})
            for message in earlier:
                _write(writer, describe_item(message))
                await writer.drain()
            async for item in items:
                _write(writer, describe_item(item))
                await writer.drain()


def describe_item(item: Item) -> dict[str, Any]:
    """One item of the subscription as a JSON object; bytes in hex."""
    match item:
        case Message():
            return {
                "message": item.address.hex(),
                "timestamp": item.timestamp_ms,
                "ttl_epoch": item.ttl_epochs,
                "references": [each.hex() for each in item.references],
                "source": item.source,
                "payload_hex": item.payload.hex(),
            }
        case Gap():
            referrer = item.referrer.hex() if item.referrer else None
            return {"gap": item.msg_hash.hex(), "state": item.state, "referrer": referrer}
        case Evidence():
            return {"evidence": item.kind, "messages": [each.hex() for each in item.messages]}
        case Missed():
            return {"missed": item.count}


def _write(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    writer.write(msgspec.json.encode(answer) + b"\n")
