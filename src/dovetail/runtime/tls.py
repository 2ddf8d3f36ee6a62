"""TLS for servers and clients: contexts, names in certificates, revocation lists, and why a handshake failed."""

from __future__ import annotations

import _ssl
import abc
import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import ssl
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.model.errors import ConfigError, KeyFileError

if TYPE_CHECKING:
    from cryptography import x509  # imported where it is used: a client without TLS starts sooner

MAX_REVOCATION_LIST_BYTES = 64 * 1024 * 1024
CHECK_S = 2.0
CLOSED = "the peer closed the connection"
_SET_SESSION_CACHE_MODE, _SESSION_CACHE_OFF = 44, 0  # SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF
_HANDSHAKE_RECORD = 22
_RECORD_HEAD_BYTES = 5
_MAX_RECORD_BYTES = 16_384
_NO_TLS = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
_ISSUER_UNKNOWN = frozenset({2, 18, 19, 20, 21})
"""Codes of OpenSSL's verification for a certificate that no known authority has signed."""

log = logging.getLogger("dovetail.tls")


def server_context(certificate: str, key: str, authority: str | None = None) -> ssl.SSLContext:
    """TLS 1.2 and 1.3 for a server; with an authority, clients must present a certificate that it signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # some PCP clients support nothing newer
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # a session ticket would outlive a revocation
    context.options |= ssl.OP_NO_TICKET
    _keep_no_sessions(context)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    _load(context, certificate, key, authority)
    return context


def _keep_no_sessions(context: ssl.SSLContext) -> None:
    """Disable the cache of TLS 1.2 sessions: each takes 8 KiB with its certificates, and there may be 20,480.

    Python does not expose the option. The pointer to OpenSSL's context is the first field of Python's: the transports
    (aiofastnet) rely on that too. If OpenSSL's library cannot be found through `_ssl`, the cache stays on.
    """
    path = getattr(_ssl, "__file__", None)
    if path is None or sys.implementation.name != "cpython":
        return
    with contextlib.suppress(OSError, AttributeError):
        control = ctypes.CDLL(path).SSL_CTX_ctrl
        control.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p)
        control.restype = ctypes.c_long
        address = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
        control(address, _SET_SESSION_CACHE_MODE, _SESSION_CACHE_OFF, None)


def client_context(
    certificate: str | None = None, key: str | None = None, authority: str | None = None
) -> ssl.SSLContext:
    """TLS for a client: the server's name must be certified by `authority`, or by one that the system trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authority is None:
        context.load_default_certs()
    _load(context, certificate, key, authority)
    return context


def _load(context: ssl.SSLContext, certificate: str | None, key: str | None, authority: str | None) -> None:
    def ask() -> str:  # otherwise OpenSSL asks on the terminal
        raise KeyFileError(f"{key or certificate} is encrypted: decrypt it, and protect it by its mode")

    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key, ask)
        if authority is not None:
            context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise KeyFileError(_find_fault(certificate, key, authority, error)) from None


def _find_fault(certificate: str | None, key: str | None, authority: str | None, error: OSError) -> str:
    """Which of these files is at fault; OpenSSL's error does not name it."""
    kinds = ((certificate, "CERTIFICATE"), (key, "PRIVATE KEY"), (authority, "CERTIFICATE"))
    read: list[tuple[str, str, bytes]] = []
    for path, kind in kinds:
        if path is not None:
            try:
                read.append((path, kind, Path(path).read_bytes()))
            except OSError as unreadable:
                return f"{path} cannot be read: {unreadable.strerror or unreadable}"
    for path, kind, data in read:
        if f"{kind}-----".encode() not in data:
            return f"{path} has no {kind.lower()} in PEM"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"{key or certificate} is not the private key of {certificate}"
    return f"{', '.join(path for path, _, _ in read)} cannot be used: {error}"


class ReloadedTls(abc.ABC):
    """A context loaded from files, reloaded for new connections when they change."""

    _files: tuple[str | None, ...]

    def __init__(self, check_s: float = CHECK_S) -> None:
        self._check_s = check_s
        self._stamps = self._stat()
        self._load()
        self._looked_at = time.monotonic()

    def current(self) -> ssl.SSLContext:
        """The context for a new connection; if changed files are unusable, the last usable one."""
        now = time.monotonic()
        if now - self._looked_at >= self._check_s:
            self._looked_at = now
            stamps = self._stat()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._load()
                    log.info("certificates read again: %s", ", ".join(path for path in self._files if path))
                except KeyFileError as error:
                    log.error("certificate not loaded, keeping the previous one: %s", error)
        return self._context

    def expiries(self) -> dict[str, float | None]:
        """When the certificate and the authority of `current` expire."""
        self.current()
        return self._expiries

    def _load(self) -> None:
        self._context, self._expiries = self._make()

    @abc.abstractmethod
    def _make(self) -> tuple[ssl.SSLContext, dict[str, float | None]]:
        """Load the context and the expiry of its files; raises KeyFileError."""

    def _stat(self) -> list[tuple[int, int] | None]:
        return [_stamp(Path(path)) for path in self._files if path is not None]


class ServerTls(ReloadedTls):
    """A server's certificate, key and authority."""

    def __init__(self, certificate: str, key: str, authority: str | None = None, *, check_s: float = CHECK_S) -> None:
        self._files = (certificate, key, authority)
        self._server_files = (certificate, key, authority)
        super().__init__(check_s)

    def _make(self) -> tuple[ssl.SSLContext, dict[str, float | None]]:
        certificate, _, authority = self._server_files
        context = server_context(*self._server_files)
        return context, {"certificate": first_expiry(certificate), "authority": first_expiry(authority)}


class ClientTls(ReloadedTls):
    """The authority that must certify servers, or the system's if there is none."""

    def __init__(self, authority: str | None, *, check_s: float = CHECK_S) -> None:
        self._files = (authority,)
        super().__init__(check_s)

    def _make(self) -> tuple[ssl.SSLContext, dict[str, float | None]]:
        return client_context(authority=self._files[0]), {"authority": first_expiry(self._files[0])}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def first_expiry(path: str | None) -> float | None:
    """When the first certificate of a chain or bundle expires, in seconds since 1970; None without a file."""
    from cryptography import x509

    if path is None:
        return None
    chain = x509.load_pem_x509_certificates(Path(path).read_bytes())
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)


def guess_refusal(certificate: str, authority: str | None) -> str:
    """Why a server that closed the connection may have rejected our certificate: servers rarely say."""
    from cryptography import x509

    try:
        chain = x509.load_pem_x509_certificates(Path(certificate).read_bytes())
        issuers = [] if authority is None else x509.load_pem_x509_certificates(Path(authority).read_bytes())
    except (OSError, ValueError):
        return "it may not accept our certificate"
    expiry = min(each.not_valid_after_utc for each in chain)
    if expiry.timestamp() < time.time():
        return f"our certificate {certificate} expired on {expiry:%Y-%m-%d}"
    if issuers and not any(_is_issued_by(each, issuer) for each in chain for issuer in issuers):
        return f"our certificate {certificate} was not issued by the CA in {authority}"
    return "it may not accept our certificate"


def _is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


async def refuse_hello(accepted: socket.socket) -> None:
    """Wait for the first byte at a server without TLS; a client that begins with TLS is told so, and need not wait."""
    await _await_input(accepted)
    if accepted.recv(1, socket.MSG_PEEK) == bytes([_HANDSHAKE_RECORD]):
        accepted.recv(_MAX_RECORD_BYTES)  # closing with unread input would discard the answer
        accepted.send(_NO_TLS)
        raise OSError("the client begins with TLS, which this server does not have")


async def _await_input(accepted: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(accepted, _finish, readable)
    try:
        await readable
    finally:
        loop.remove_reader(accepted)


async def wait_for_hello(accepted: socket.socket) -> None:
    """Wait until the first record of a TLS handshake has arrived, without reading it: until then TLS uses no memory.

    Input that is not TLS is left for TLS to refuse. Raises ConnectionResetError if the peer disconnects.
    """
    wanted = 1
    try:
        while True:
            await _await_input(accepted)
            head = accepted.recv(_RECORD_HEAD_BYTES + _MAX_RECORD_BYTES, socket.MSG_PEEK)
            if len(head) < wanted:  # the kernel wakes us with less only at the end of the stream
                raise ConnectionResetError
            wanted = _RECORD_HEAD_BYTES
            if len(head) >= _RECORD_HEAD_BYTES:
                wanted += min(int.from_bytes(head[3:5]), _MAX_RECORD_BYTES)
            if head[0] != _HANDSHAKE_RECORD or len(head) >= wanted:
                return
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
    finally:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class TransportLoop:
    """The running event loop as presented to aiofastnet's transports.

    Its timers keep no transport alive: aiofastnet does not cancel them for an abandoned handshake, and each held 55 KiB
    until the garbage collector ran. And aiofastnet reports a peer that disconnects during its handshake twice, the
    first time with the class ConnectionResetError instead of an exception, which the loop would log with a traceback.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a method of a transport, if the transport still exists."""
        owner: Any = callback.__self__  # type: ignore[attr-defined]
        return self._loop.call_later(delay_s, _call_if_alive, weakref.ref(owner), callback.__name__)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report only real exceptions."""
        if context.get("exception") is not ConnectionResetError:
            self._loop.call_exception_handler(context)


def _call_if_alive(reference: weakref.ref[Any], method: str) -> None:
    owner = reference()
    if owner is not None:
        getattr(owner, method)()


def describe_failure(error: OSError) -> str:
    """Why a connection or its TLS handshake failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message or error}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"tls: {error.reason.lower().replace('_', ' ')}"
    if isinstance(error, ConnectionResetError):
        return CLOSED
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error) or type(error).__name__


def describe_connecting(error: OSError, *, is_tls: bool) -> str:
    """Why a client did not connect, and what to look at."""
    text = describe_failure(error)
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _ISSUER_UNKNOWN:
        return f"{text}; the authority must be the CA that signed it"
    if is_tls and isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "the server answers without TLS"
    if not is_tls and text == CLOSED:
        return f"{text}; it may expect TLS"
    return text


def common_name(certificate: dict[str, Any] | None) -> str | None:
    """The only CN among all RDNs of a peer's certificate; None if there is none, or more than one."""
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName" and value]
    return names[0] if len(names) == 1 else None


def serial_number(certificate: dict[str, Any] | None) -> int | None:
    """The serial number of a peer's certificate."""
    text = certificate.get("serialNumber") if certificate else None
    return int(text, 16) if text else None


class RevocationList:
    """The serial numbers an authority has revoked, read again whenever the file changes."""

    def __init__(self, path: str, authority: str) -> None:
        self._path = Path(path)
        self._authority = Path(authority)
        self._stamp: tuple[int, int] | None = None
        self.serials: frozenset[int] = frozenset()
        self.next_update_s: float | None = None

    def reload(self) -> frozenset[int]:
        """Read the list if the file has changed; returns the numbers that are new. Raises ConfigError."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return frozenset()
            if status.st_size > MAX_REVOCATION_LIST_BYTES:
                raise ConfigError(
                    f"{self._path} has {status.st_size} bytes, expected at most {MAX_REVOCATION_LIST_BYTES}"
                )
            listed = self._read(self._path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror or error}") from None
        self._stamp = stamp
        new, self.serials = listed - self.serials, listed
        return new

    def _read(self, data: bytes) -> frozenset[int]:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm

        try:
            if data.lstrip().startswith(b"-----"):
                revocations = x509.load_pem_x509_crl(data)
            else:
                revocations = x509.load_der_x509_crl(data)
            authorities = x509.load_pem_x509_certificates(self._authority.read_bytes())
            issuers = [authority for authority in authorities if authority.subject == revocations.issuer]
            if not any(_is_signed_by(revocations, issuer) for issuer in issuers):
                raise ConfigError(f"{self._path} is not signed by an authority of {self._authority}")
            promised = revocations.next_update_utc
            serials = frozenset(entry.serial_number for entry in revocations)
        except (
            ValueError,
            x509.InvalidVersion,
            UnsupportedAlgorithm,
        ) as error:  # names, algorithms and entries are parsed when asked for
            raise ConfigError(f"{self._path} is not a revocation list: {error}") from None
        self.next_update_s = None if promised is None else promised.timestamp()
        return serials


def _is_signed_by(revocations: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    key = issuer.public_key()
    try:
        return revocations.is_signature_valid(key)  # type: ignore[arg-type]
    except TypeError:
        return False  # a key type that signs no lists
