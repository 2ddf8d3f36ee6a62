"""HTTP beside the WebSockets: responses to a GET, and a bounded GET of a document."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from dovetail.model.errors import ConnectFailed
from dovetail.runtime.tls import describe_connecting

MAX_DOCUMENT_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 << 10
MAX_CHUNKS = 4_096
"""Each takes work, however small it is; servers send some kilobytes in each."""
FETCH_S = 8.0


class Reply(NamedTuple):
    """A response that ends its connection."""

    status: int
    body: bytes = b""
    media_type: str = "text/plain"
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, *, is_head: bool = False) -> bytes:
        """The whole response; without its body for HEAD."""
        head = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.media_type}",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join([*head, "\r\n"]).encode("latin-1") + (b"" if is_head else self.body)


async def fetch(
    uri: str,
    context: ssl.SSLContext | None,
    accept: str = "application/trig",
    *,
    headers: Iterable[tuple[str, str]] = (),
    address: str | None = None,
) -> bytes | None:
    """GET a document, or the remains of a deleted one (410), from the host in its URI or from `address`.

    None if there is none, if it is too large, or nobody answers in time; redirects are not followed.
    """
    try:
        async with asyncio.timeout(FETCH_S):
            return await _fetch(uri, context, accept, headers, address)
    except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
        return None


async def probe(
    uri: str, context: ssl.SSLContext | None, timeout_s: float, accept: str = "application/trig"
) -> bytes | None:
    """GET a document; None for any other response. ConnectFailed says why there is no response at all."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _fetch(uri, context, accept)
    except TimeoutError:
        raise ConnectFailed(uri, f"did not answer within {timeout_s:g} s") from None
    except OSError as error:
        why = describe_connecting(error, is_tls=uri.startswith("https:"))
        raise ConnectFailed(uri, f"cannot be reached: {why}") from None
    except (ValueError, EOFError, asyncio.LimitOverrunError):
        return None


def is_url(text: str, *schemes: str) -> bool:
    """True if text is a URL of one of these schemes, with a host."""
    try:
        parts = urlsplit(text)
        return (
            text.isprintable()
            and " " not in text
            and parts.scheme in schemes
            and parts.hostname is not None
            and parts.port != 0
        )
    except ValueError:
        return False


async def _fetch(
    uri: str,
    context: ssl.SSLContext | None,
    accept: str,
    headers: Iterable[tuple[str, str]] = (),
    address: str | None = None,
) -> bytes | None:
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    is_secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        address or parts.hostname,
        parts.port or (443 if is_secure else 80),
        ssl=(context or ssl.create_default_context()) if is_secure else None,
        server_hostname=parts.hostname if is_secure else None,
        limit=MAX_HEADER_BYTES,
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [("Host", parts.netloc), ("Accept", accept), ("Connection", "close"), *headers]
        request = f"GET {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines) + "\r\n"
        writer.write(request.encode("ascii"))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        if head[0].split(" ")[1:2] not in (["200"], ["410"]):
            return None
        found = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        coding = found.get("transfer-encoding")
        if coding is not None:
            return await _read_chunks(reader) if coding.lower() == "chunked" else None
        size = int(found.get("content-length", "-1"))
        if size > MAX_DOCUMENT_BYTES:
            return None
        if size >= 0:
            return await reader.readexactly(size)
        body = b"".join([part async for part in _read_to_end(reader)])
        return body if len(body) <= MAX_DOCUMENT_BYTES else None
    finally:
        writer.close()


async def _read_chunks(reader: asyncio.StreamReader) -> bytes | None:
    """The body of a chunked response; None if it is too large or in too many chunks. Trailers are not read."""
    body = bytearray()
    for _ in range(MAX_CHUNKS):
        size = int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16)
        if size == 0:
            return bytes(body)
        if not 0 < size <= MAX_DOCUMENT_BYTES - len(body):
            return None
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            return None
    return None


async def _read_to_end(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    size = 0
    while size <= MAX_DOCUMENT_BYTES and (chunk := await reader.read(65536)):
        size += len(chunk)
        yield chunk
