"""The lake in an S3-compatible object store.

Bucket and prefix are in the URL, everything else in the environment, as for other programs: AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY or the role of the machine, AWS_REGION, AWS_ENDPOINT_URL for a store other than Amazon's.

`create` and `put_file` send `If-None-Match: *`. A response may be lost after the store has done its work; the request
is then repeated, or fails, and does not show who created the object. So every object has a token of the call that
created it, and a caller that is refused, or gets no response, reads the object back.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import mmap
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dovetail.lake.store import Entry, check_key
from dovetail.model.errors import ConfigError, ConnectFailed, JournalDamaged, JournalError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_PUT_BYTES = 5 << 30
"""What an object store accepts in one request."""

_LOCATION = re.compile(r"s3a?://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>.*?))?/*")
_MADE_BY = "dovetail-put"
_COMPARE_BYTES = 8 << 20
_PAGE = 1000
_TIMEOUT = "120s"
_MAX_RETRIES = 6
_CONFLICT_PAUSES_S = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0)

_clients: dict[tuple[str, str], Any] = {}


def parse_location(location: str) -> ObjectStore:
    """The store that a URL names; ConfigError if it names none."""
    match = _LOCATION.fullmatch(location)
    if match is None:
        raise ConfigError(f"{location[:200]!r} is not the place of a lake, expected s3://bucket or s3://bucket/prefix")
    if importlib.util.find_spec("obstore") is None:
        raise ConfigError("object stores need the extra `s3`: pip install 'dovetail[s3]'")
    prefix = match["prefix"] or ""
    try:
        return ObjectStore(match["bucket"], check_key(prefix) if prefix else "")
    except JournalDamaged:
        raise ConfigError(f"the prefix of {location[:200]!r} has characters that are not plain") from None


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A bucket, or the keys in it below a prefix. Can be pickled: each process connects by itself."""

    bucket: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"s3://{self._full('')}".removesuffix("/")

    def put_file(self, key: str, path: Path) -> None:
        """Store a file from `scratch`. An equal object may already exist; a different one is JournalDamaged."""
        size = path.stat().st_size
        if size > MAX_PUT_BYTES:
            raise JournalError(f"{path} has {size} bytes, expected at most {MAX_PUT_BYTES} in an object store")
        with path.open("rb") as file:
            mapped = contextlib.nullcontext(b"") if not size else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with mapped as data:
                if not self._create(key, data) and not self._is_equal(key, data):
                    raise JournalDamaged(f"{self}/{key} exists with different bytes")

    def create(self, key: str, data: bytes) -> bool:
        """Store bytes only if there is no such object; False if somebody else created one, whatever its bytes."""
        return self._create(key, data)

    def _create(self, key: str, data: bytes | mmap.mmap) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError

        token = secrets.token_hex(16)
        for pause_s in (*_CONFLICT_PAUSES_S, None):
            problem = "another writer is creating it, and does not end"
            try:
                obstore.put(self._client, check_key(key), data, mode="create", attributes={_MADE_BY: token})
                return True
            except AlreadyExistsError:
                is_conflict = True
            except BaseError as error:
                is_conflict, problem = False, _line(error)
            with contextlib.suppress(FileNotFoundError):
                return self._token_of(key) == token
            if not is_conflict:
                break
            # refused, yet there is no object: another writer was in progress (409 in S3), and may have failed
            if pause_s is not None:
                time.sleep(pause_s)
        raise ConnectFailed(f"{self}/{key}", str(problem))

    def _token_of(self, key: str) -> str | None:
        """The token of the call that created an object."""
        with self._errors():
            import obstore

            token: str | None = dict(obstore.get(self._client, key, options={"head": True}).attributes).get(_MADE_BY)
            return token

    def _is_equal(self, key: str, data: bytes | mmap.mmap) -> bool:
        return self.entry(key).size == len(data) and all(
            self.get(key, start, _COMPARE_BYTES) == data[start : start + _COMPARE_BYTES]
            for start in range(0, len(data), _COMPARE_BYTES)
        )

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `start`."""
        import obstore
        from obstore.exceptions import GenericError

        if length == 0:
            self.entry(key)  # FileNotFoundError if there is no such object
            return b""
        wanted: Any = ({"offset": start} if start else None) if length is None else (start, start + length)
        with self._errors():
            try:
                options = {} if wanted is None else {"range": wanted}
                return bytes(obstore.get(self._client, check_key(key), options=options).bytes())  # type: ignore[arg-type]
            except GenericError:
                if self.entry(key).size <= start:  # a range beyond the end is an error in S3
                    return b""
                raise

    def entry(self, key: str) -> Entry:
        """The listing entry of one object."""
        import obstore

        with self._errors():
            return _entry(obstore.head(self._client, check_key(key)))

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Objects whose keys start with `prefix` and sort after `after`, in pages of a thousand."""
        directory, slash, beginning = prefix.rpartition("/")
        start = max(after, prefix)
        if beginning and prefix > after:
            # a listing starts after the given key, so a key equal to the prefix is requested separately
            with contextlib.suppress(FileNotFoundError):
                yield self.entry(prefix)
        for entry in self._list(directory + slash, start):
            if not entry.key.startswith(prefix):
                if entry.key > prefix:
                    return
            elif entry.key > after and _is_plain(entry.key):
                yield entry

    def _list(self, directory: str, start: str) -> Iterator[Entry]:
        """All objects of a directory after `start`."""
        import obstore
        from obstore.exceptions import InvalidPathError

        try:
            with self._errors():
                for page in obstore.list(
                    self._client,
                    prefix=directory.removesuffix("/") or None,
                    offset=start if start > directory else None,
                    chunk_size=_PAGE,
                ):
                    for meta in page:
                        entry = _entry(meta)
                        start = max(start, entry.key)
                        yield entry
        except InvalidPathError as odd:
            yield from self._list_beside(odd, directory, start)

    def _list_beside(self, odd: Exception, directory: str, start: str) -> Iterator[Entry]:
        """The same with another client, slowly and without tags: this one fails at a name such as `a//b`."""
        from pyarrow.fs import FileSelector, FileType, S3FileSystem

        other = urlsplit(endpoint())
        system = S3FileSystem(
            endpoint_override=other.netloc or None,
            scheme=other.scheme or "https",
            region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        )
        try:
            below = self._full("") + directory
            found = system.get_file_info(FileSelector(below.removesuffix("/"), allow_not_found=True, recursive=True))
        except OSError as error:
            text = f"{self}: an object's name cannot be read ({_line(odd)}), nor the others beside it: {_line(error)}"
            raise JournalDamaged(text) from None
        files = {info.path.removeprefix(self._full("")): info for info in found if info.type == FileType.File}
        for key in sorted(files):
            if key > start:
                yield Entry(key, files[key].size, files[key].mtime.timestamp())

    def directories(self, prefix: str) -> Sequence[str]:
        """The next part of each key that starts with `prefix`, which ends in a slash, if another slash follows.

        One request per thousand.
        """
        import obstore
        from obstore.exceptions import InvalidPathError

        try:
            with self._errors():
                found = obstore.list_with_delimiter(self._client, prefix=prefix.removesuffix("/") or None)
            names = [path.removesuffix("/").rpartition("/")[2] for path in found["common_prefixes"]]
        except InvalidPathError:
            rest = (entry.key.removeprefix(prefix) for entry in self._list(prefix, ""))
            names = list({name.partition("/")[0] for name in rest if "/" in name})
        return sorted(name for name in names if _is_plain(name))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        import obstore

        checked = [check_key(key) for key in keys]
        with self._errors():
            for start in range(0, len(checked), _PAGE):
                obstore.delete(self._client, checked[start : start + _PAGE])

    def open(self, key: str) -> pa.NativeFile:
        """Open an object for random access."""
        import pyarrow as pa

        return pa.PythonFile(_Reader(self, key, self.entry(key).size), mode="r")

    def url(self, key: str) -> str:
        """The URL of the object for Spark."""
        return f"s3a://{self._full(check_key(key))}"

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary directory on this machine."""
        with tempfile.TemporaryDirectory(prefix="dovetail-") as directory:
            yield Path(directory)

    def _full(self, key: str) -> str:
        return "/".join(part for part in (self.bucket, self.prefix, key) if part) + ("" if key else "/")

    @property
    def _client(self) -> Any:
        try:
            return _clients[self.bucket, self.prefix]
        except KeyError:
            client = _clients[self.bucket, self.prefix] = _connect(self.bucket, self.prefix)
            return client

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate errors of the client. Missing objects are FileNotFoundError already."""
        from obstore.exceptions import BaseError, InvalidPathError

        try:
            yield
        except InvalidPathError:
            raise
        except BaseError as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> ConnectFailed:
        return ConnectFailed(str(self), _line(error))


class _Reader(io.RawIOBase):
    """Reads ranges of an object, as many bytes as requested."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size, self._position = store, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        rest = max(0, self._size - self._position)
        wanted = rest if size < 0 else min(size, rest)
        data = self._store.get(self._key, self._position, wanted) if wanted else b""
        self._position += len(data)
        return data


def _is_plain(key: str) -> bool:
    try:
        check_key(key)
    except JournalDamaged:
        return False
    return True


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


def _line(error: Exception) -> str:
    """The part of a client error that a person needs: its first line, without the body of a response."""
    text = str(error).partition("\n")[0].partition(": <?xml")[0]
    return text[:300]


def _connect(bucket: str, prefix: str) -> Any:
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            client_options={"allow_http": endpoint().startswith("http://"), "timeout": _TIMEOUT},
            retry_config={"max_retries": _MAX_RETRIES},
        )
    except BaseError as error:
        raise ConfigError(f"s3://{bucket}: {_line(error)}") from None


def endpoint() -> str:
    """The endpoint URL of the store; empty for Amazon's."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
