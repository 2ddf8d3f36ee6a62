"""One writer at a time: a lease that the writer of the tables holds, renews, and releases.

Delta's own commits do not exclude two audits: both would append the same hops. So the state of the lease is an object
`_lease/<number>.json`, the newest of which counts, and each change creates the next number, which only one process can
win, in a directory as on an object store. A lease that is not renewed expires; on the same machine the end of its
process is noticed immediately.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dovetail.lake.store import Store
from dovetail.model.errors import PipelineError

DIRECTORY = "_lease"
LASTS_S = 60.0
_RENEW_S = 15.0
_LOOK_S = 0.5


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the lease, and until when; `until_s` 0 means no one."""

    owner: str
    host: str
    pid: int
    boot: str
    until_s: float

    def is_over(self, now_s: float) -> bool:
        """True if another process may take it."""
        return self.until_s <= now_s or (
            self.host == socket.gethostname() and self.boot == boot_id() and not _lives(self.pid)
        )

    def text(self) -> str:
        """A readable description."""
        return f"process {self.pid} on {self.host}"


class LeaseLost(PipelineError):
    """Another process holds the lease, or this process was too late to renew it."""


@dataclass(slots=True)
class Lease:
    """The lease of the tables in one store."""

    store: Store
    owner: str = field(default_factory=lambda: secrets.token_hex(8))
    _number: int = 0
    _until_s: float = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def take(self, wait_s: float = 0) -> None:
        """Take the lease; raises PipelineError with the holder if it is held for longer than `wait_s`."""
        give_up = time.monotonic() + wait_s
        while True:
            number, holder = self._newest()
            if holder is None or holder.owner == self.owner or holder.is_over(time.time()):
                if self._write(number + 1, LASTS_S):
                    break
                continue
            if time.monotonic() >= give_up:
                raise PipelineError(f"another audit is writing these tables: {holder.text()}; wait for it with --wait")
            time.sleep(_LOOK_S)
        self._stop.clear()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise LeaseLost unless this process certainly still holds the lease."""
        if time.time() >= self._until_s:
            raise LeaseLost("the lease of the tables was lost: this process was stopped for too long")

    def give_back(self) -> None:
        """Release the lease."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if time.time() < self._until_s:
            self._write(self._number + 1, 0)
        self._until_s = 0

    def _renew(self) -> None:
        while not self._stop.wait(_RENEW_S):
            try:
                if not self._write(self._number + 1, LASTS_S):
                    self._until_s = 0
                    return
            except OSError:
                continue  # the store may recover before the lease expires

    def _write(self, number: int, lasts_s: float) -> bool:
        until_s = time.time() + lasts_s if lasts_s else 0
        holder = Holder(owner=self.owner, host=socket.gethostname(), pid=os.getpid(), boot=boot_id(), until_s=until_s)
        key = f"{DIRECTORY}/{number:012d}.json"
        if not self.store.create(key, msgspec.json.encode(holder)):
            return False
        known = [entry.key for entry in self.store.list(f"{DIRECTORY}/")]
        if any(_number_of(other) > number for other in known):
            self.store.delete([key])  # a number that others have used and deleted since
            return False
        self._number, self._until_s = number, until_s
        self.store.delete([other for other in known if _number_of(other) < number])
        return True

    def _newest(self) -> tuple[int, Holder | None]:
        newest = max((_number_of(entry.key) for entry in self.store.list(f"{DIRECTORY}/")), default=0)
        if not newest:
            return 0, None
        try:
            data = self.store.get(f"{DIRECTORY}/{newest:012d}.json", 0, 4096)
            return newest, msgspec.json.decode(data, type=Holder)
        except FileNotFoundError:
            return self._newest()
        except msgspec.DecodeError:
            return newest, None


def _number_of(key: str) -> int:
    name = key.rpartition("/")[2].removesuffix(".json")
    return int(name) if name.isdigit() else 0


def boot_id() -> str:
    """Distinguishes processes since the last boot of this machine from earlier ones."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
