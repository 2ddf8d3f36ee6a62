"""An owner's client with its own directory: the atom's key, its journal, and the keys of others it has seen.

atom.json       the atom's URI and its sockets
atom.skey       the atom's signing key (PEM)
keys/           documents of nodes and atoms, for verifying messages later without a network
journal.db      every message of the atom's conversations, as this owner got them
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.durable_file import replace_file
from dovetail.journal.journal import Journal
from dovetail.keys.files import make_private_directory, write_private
from dovetail.keys.signing import load_private_key
from dovetail.model.errors import ConfigError, KeyFileError
from dovetail.model.hop import Stage
from dovetail.runtime.addresses import AddressGuard
from dovetail.runtime.clock import now_us
from dovetail.runtime.http import fetch
from dovetail.runtime.key_fetches import KeyFetches
from dovetail.runtime.loop import ask, completed
from dovetail.runtime.tls import ClientTls
from dovetail.runtime.won_links import WonLinks
from dovetail.tlog.keys import Signer
from dovetail.won.access import sign_request
from dovetail.won.chain import ChainState
from dovetail.won.events import ChainAdvanced, Event, RegistrationConfirmed
from dovetail.won.keys import read_key_document
from dovetail.won.message import Message
from dovetail.won.owner import Owner
from dovetail.won.settings import WonSettings
from dovetail.won.signing import PublicKey, SigningKey


class AtomFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an owner's directory says about its atom."""

    atom: str
    sockets: tuple[str, ...]
    authority: str | None = None
    networks: tuple[str, ...] = ()
    """Non-public networks that keys of others may be fetched from."""


class OwnerHome:
    """The directory of one owner's client."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            self.file = msgspec.json.decode((directory / "atom.json").read_bytes(), type=AtomFile)
        except OSError as error:
            raise ConfigError(f"{directory} is no owner's directory: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise KeyFileError(f"{directory} cannot be used: {error}") from None
        private = load_private_key(directory / "atom.skey")
        if not isinstance(private, Ed25519PrivateKey):
            raise KeyFileError(f"{directory / 'atom.skey'} is not an Ed25519 key")
        self.private_key = private

    @classmethod
    def create(cls, directory: Path, file: AtomFile, key: Ed25519PrivateKey | None = None) -> OwnerHome:
        """Create a directory for an atom, with a new key or, for another client of the same atom, its key."""
        make_private_directory(directory)
        if (directory / "atom.json").exists():
            raise ConfigError(f"{directory} has an atom already")
        pem = (key or Ed25519PrivateKey.generate()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(directory / "atom.skey", pem)
        (directory / "atom.json").write_bytes(msgspec.json.format(msgspec.json.encode(file)))
        return cls(directory)

    def set_sockets(self, sockets: tuple[str, ...]) -> None:
        """Record that the atom was replaced, and has these sockets now."""
        self.file = msgspec.structs.replace(self.file, sockets=sockets)
        replace_file(self.directory / "atom.json", msgspec.json.format(msgspec.json.encode(self.file)))

    @property
    def journal_path(self) -> Path:
        """The path of the owner's own copy."""
        return self.directory / "journal.db"

    def open_journal(self) -> Journal:
        """Open the journal for writing; the caller must close it."""
        signer = Signer(self.file.atom, self.private_key)
        return Journal.open(self.journal_path, server=self.file.atom, signer=signer)

    def _document_path(self, uri: str) -> Path:
        return self.directory / "keys" / (hashlib.sha256(uri.encode()).hexdigest()[:32] + ".trig")

    def read_document(self, uri: str) -> bytes | None:
        """A document stored earlier; None if there is none, or the disk has lost its key since."""
        try:
            data = self._document_path(uri).read_bytes()
        except FileNotFoundError:
            return None
        return None if read_key_document(uri, data) is None else data

    def keep_document(self, uri: str, data: bytes) -> None:
        """Store a document if it contains a key: the first key seen for a URI stays."""
        path = self._document_path(uri)
        if self.read_document(uri) is None and read_key_document(uri, data) is not None:
            make_private_directory(path.parent)
            replace_file(path, data)

    def find_keys(self, uris: set[str]) -> dict[str, PublicKey]:
        """The keys of these signers, from stored documents."""
        found = {self.file.atom: SigningKey(self.private_key.private_bytes_raw()).public}
        for uri in uris - found.keys():
            data = self.read_document(uri)
            key = read_key_document(uri, data) if data is not None else None
            if key is not None:
                found[uri] = key
        return found

    @property
    def guard(self) -> AddressGuard:
        """Where keys may be fetched from."""
        return AddressGuard(self.file.atom, self.file.networks, trusts_own=True)

    async def fetch_keys(self, uris: set[str]) -> None:
        """Fetch and store the missing documents."""
        fetches = KeyFetches(self.guard, ClientTls(self.file.authority).current)
        for uri in uris - self.find_keys(uris).keys():
            data = await fetches.fetch(uri)
            if data is not None:
                self.keep_document(uri, data)

    async def read_signed(self, uri: str) -> bytes | None:
        """Fetch a document that only participants may read, as this atom."""
        key = SigningKey(self.private_key.private_bytes_raw())
        headers = sign_request(uri, self.file.atom, key, now_us())
        return await fetch(uri, ClientTls(self.file.authority).current(), headers=headers)

    def read_messages(self) -> list[bytes]:
        """The bytes of every message accepted or created, in order."""
        if not self.journal_path.exists():
            return []
        with self.open_journal() as journal:
            return read_bodies(journal)


def read_bodies(journal: Journal) -> list[bytes]:
    """The bytes of every message that an owner accepted or created, in order."""
    return [hop.raw for hop in journal.hops() if hop.raw is not None and hop.stage in (Stage.ACCEPTED, Stage.CREATED)]


class OwnerClient:
    """A running client. Use it with `async with`."""

    def __init__(
        self,
        home: OwnerHome,
        *,
        is_created: bool = True,
        settings: WonSettings | None = None,
        observer: Callable[[Event], None] | None = None,
    ) -> None:
        self.home = home
        self._settings = settings or WonSettings()
        self._observer = observer
        self._registered = asyncio.Event()
        self._waiters: dict[str, asyncio.Future[None]] = {}
        self.journal = home.open_journal()
        self.owner = Owner(
            home.file.atom,
            SigningKey(home.private_key.private_bytes_raw()),
            random.SystemRandom(),
            settings=self._settings,
            is_created=is_created,
        )

    async def __aenter__(self) -> OwnerClient:
        self.owner.restore(self.journal.hops(), now_us())
        self._links = WonLinks(
            self.owner,
            self.journal,
            context=ClientTls(self.home.file.authority).current,
            guard=self.home.guard,
            is_dialling_others=False,
            settings=self._settings,
            observer=self._observe,
            documents=self.home,
        )
        self.owner.start(now_us())
        self._links.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await completed(self._close())

    async def _close(self) -> None:
        self._links.driver.call(lambda _: self.owner.stop())
        await self._links.stop()
        await asyncio.to_thread(self.journal.close)

    async def say(self, action: Callable[[Owner, int], Message], timeout_s: float | None = None) -> Message:
        """Let the owner create a message; returns when it is journaled and sent.

        While the disk is full it is neither; then raises JournalFull when the time is over.
        """
        return await ask(self._links.driver, lambda now: action(self.owner, now), timeout_s)

    async def wait_registered(self, timeout_s: float) -> bool:
        """Wait until this client has everything that the node has."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._registered.wait()
        except TimeoutError:
            return False
        return True

    async def wait_settled(self, uri: str, timeout_s: float) -> ChainState | None:
        """Wait until a message is complete or has failed; returns its state then, or when the time is over."""
        if not self._is_final(uri):
            waiter = self._waiters.setdefault(uri, asyncio.get_running_loop().create_future())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await asyncio.shield(waiter)
        return self.owner.conversations.state_of(uri)

    def _is_final(self, uri: str) -> bool:
        chain = self.owner.conversations.deliveries[uri].chain
        return chain.is_stored or chain.failure is not None

    def _observe(self, event: Event) -> None:
        match event:
            case RegistrationConfirmed():
                self._registered.set()
            case ChainAdvanced() if event.uri in self._waiters and self._is_final(event.uri):
                waiter = self._waiters.pop(event.uri)
                if not waiter.done():
                    waiter.set_result(None)
            case _:
                pass
        if self._observer is not None:
            self._observer(event)
