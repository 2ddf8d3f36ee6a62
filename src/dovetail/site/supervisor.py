"""Supervises processes: starts them, relays their output, restarts those that end, and stops them in order.

Theory of operation. Each process has one task, which runs it repeatedly:

    starting --ready line--> running --ends--> waiting --pause over--> starting
        |                       |                 |
        '------ends with 2, or with 75 too often--'------> given up

A process writes `ready {...}` to standard output when it can work. One that ends with 2 cannot start as configured and
is given up immediately; one that ends with 75 found its port or journal in use, and is given up after `MAX_TAKEN`
attempts, because the holder may just be ending. Everything else is retried for ever, with pauses from `Backoff`. The
output of a process is relayed line by line, prefixed with its name; its last error, one line that begins with
`dovetail: `, is reported with the change of state instead.

Every process has a pipe from the supervisor as standard input, and ends when it closes: if the supervisor itself is
killed, nothing stays behind. Each process has its own session, so Ctrl-C reaches only the supervisor, which stops the
stages of the site one after another; processes still running after the grace time are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from prometheus_client import Counter, Gauge

from dovetail.runtime.hangup import hangup_held
from dovetail.runtime.metrics import new_registry
from dovetail.runtime.server_health import OK
from dovetail.site.backoff import Backoff
from dovetail.site.output_lines import LineSplitter

EXIT_MISUSE = 2
EXIT_TAKEN = 75
MAX_TAKEN = 5
READY = "ready "
ERROR = "dovetail: "
_STDERR = 2
_LAST_WORDS_S = 1.0


class State(enum.StrEnum):
    """The state of a process."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A process to supervise. Lower stages stop first. One that `reloads` rereads its settings at SIGHUP."""

    name: str
    command: Sequence[str]
    stage: int
    reloads: bool = False
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The times of supervision, in seconds."""

    restart_min_s: float = 0.5
    restart_max_s: float = 30.0
    well_after_s: float = 60.0
    grace_s: float = 15.0


class Listener:
    """Callbacks of the supervisor: state changes, and output lines of processes. All may be overridden."""

    def changed(self, name: str, state: State, detail: str) -> None:
        """A process changed to this state."""

    def became_healthy(self, count: int) -> None:
        """All `count` processes work now, and before this moment not all did."""

    def wrote(self, name: str, line: str, *, is_error: bool) -> None:
        """A process wrote a line to standard output, or to standard error."""


@dataclass(slots=True)
class _Child:
    """One process and its state."""

    plan: Plan
    backoff: Backoff
    state: State = State.STOPPED
    detail: str = ""
    process: asyncio.SubprocessTransport | None = None
    ready: dict[str, object] = field(default_factory=dict)
    taken: int = 0
    last_error: str = ""


class _Pipes(asyncio.SubprocessProtocol):
    """The output of a process, line by line, and its end: `exited`, and `silent` when its pipes are closed too."""

    def __init__(
        self, started: Callable[[asyncio.SubprocessTransport], None], take_line: Callable[[str, bool], None]
    ) -> None:
        self._started = started
        self._take_line = take_line
        self._splitters = {1: LineSplitter(), 2: LineSplitter()}
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.silent: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # before the first line, which may arrive before `subprocess_exec` returns
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._started(transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        for line in self._splitters[fd].feed(data):
            self._take_line(line, fd == _STDERR)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        splitter = self._splitters.pop(fd, None)
        if splitter is not None:
            for line in splitter.finish():
                self._take_line(line, fd == _STDERR)
        if not self._splitters and not self.silent.done():
            self.silent.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)


class Supervisor:
    """Runs a set of processes. Call `run`; call `stop` to end it, a second time to end it immediately."""

    def __init__(
        self,
        plans: Sequence[Plan],
        rules: Rules,
        listener: Listener,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._rules = rules
        self._listener = listener
        self._children = {
            plan.name: _Child(plan, Backoff(rules.restart_min_s, rules.restart_max_s, rules.well_after_s, draw))
            for plan in plans
        }
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()
        self._changed = asyncio.Condition()
        self.registry = new_registry()
        self._is_up = Gauge("dovetail_process_running", "1 while a process works", ["process"], registry=self.registry)
        self._restarts = Counter(
            "dovetail_process_restarts", "Starts after the first", ["process"], registry=self.registry
        )
        for name in self._children:
            self._is_up.labels(name).set(0)
            self._restarts.labels(name)

    @property
    def states(self) -> dict[str, tuple[State, str]]:
        """Every process with its state and a detail."""
        return {name: (child.state, child.detail) for name, child in self._children.items()}

    @property
    def pids(self) -> dict[str, int]:
        """The running processes."""
        return {name: child.process.get_pid() for name, child in self._children.items() if child.process is not None}

    def health(self) -> str:
        """`ok` while every process works; else which do not, and why."""
        troubles = [
            f"{name}: {child.state}" + (f": {child.detail}" if child.detail else "")
            for name, child in self._children.items()
            if child.state is not State.RUNNING
        ]
        return "; ".join(troubles) or OK

    def stop(self) -> None:
        """End all processes in order; if called again, immediately. Safe in a signal handler of the event loop."""
        if self._stopping.is_set():
            self._killing.set()
        self._stopping.set()

    def reload(self) -> None:
        """Tell processes that support it to reread their settings. Safe in a signal handler of the event loop."""
        for child in self._children.values():
            # the signal would end one that is still starting, which reads them anyway
            if child.plan.reloads and child.state is State.RUNNING:
                _signal(child, signal.SIGHUP)

    async def run(self) -> bool:
        """Supervise the processes until stopped, or until all are given up; True if none was given up."""
        stages = sorted({child.plan.stage for child in self._children.values()}, reverse=True)
        tasks: list[asyncio.Task[None]] = []
        for stage in stages:
            tasks += [asyncio.create_task(self._look_after(child)) for child in self._in_stage(stage)]
        stopping: asyncio.Task[object] = asyncio.create_task(self._stopping.wait())
        everyone: asyncio.Task[object] = asyncio.create_task(_finish(tasks))
        try:
            await asyncio.wait({everyone, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for stage in reversed(stages):
                await self._stop_stage(stage)
            await everyone
        finally:
            stopping.cancel()
            for child in self._children.values():
                _signal(child, signal.SIGKILL)
        return all(child.state is not State.GIVEN_UP for child in self._children.values())

    def _in_stage(self, stage: int) -> list[_Child]:
        return [child for child in self._children.values() if child.plan.stage == stage]

    async def _stop_stage(self, stage: int) -> None:
        """Ask a stage to end, then kill what is left."""
        children = self._in_stage(stage)
        for child in children:
            _signal(child, signal.SIGTERM)
        gone = asyncio.create_task(self._await_gone(children))
        killing = asyncio.create_task(self._killing.wait())
        await asyncio.wait([gone, killing], timeout=self._rules.grace_s, return_when=asyncio.FIRST_COMPLETED)
        killing.cancel()
        for child in children:
            if child.process is not None:
                self._listener.changed(child.plan.name, child.state, "did not exit in time and is killed")
                _signal(child, signal.SIGKILL)
        await gone

    async def _await_gone(self, children: Sequence[_Child]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: all(child.process is None for child in children))

    async def _look_after(self, child: _Child) -> None:
        """Run one process repeatedly, until it is given up or everything is stopped."""
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                code = await self._run_once(child)
            except OSError as error:
                code, child.last_error = None, f"cannot be started: {error.strerror or error}"
            if self._stopping.is_set():
                break
            problem = self._judge(child, code)
            if problem is not None:
                self._change(child, State.GIVEN_UP, problem)
                return
            pause_s = child.backoff.next_pause(time.monotonic() - began)
            self._change(child, State.WAITING, f"{_how_ended(child, code)}; starts again in {pause_s:.1f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            if not self._stopping.is_set():
                self._restarts.labels(child.plan.name).inc()
        self._change(child, State.STOPPED, "")

    def _judge(self, child: _Child, code: int | None) -> str | None:
        """Why a process that ended is not restarted; None if it is."""
        if code == EXIT_MISUSE:
            return _how_ended(child, code)
        child.taken = child.taken + 1 if code == EXIT_TAKEN else 0
        if child.taken >= MAX_TAKEN:
            return f"{_how_ended(child, code)} (tried {child.taken} times)"
        return None

    async def _run_once(self, child: _Child) -> int | None:
        """Start a process and wait for its end; returns its exit code."""
        child.last_error, child.ready = "", {}
        with hangup_held():
            transport, pipes = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Pipes(functools.partial(self._note_start, child), functools.partial(self._take_line, child)),
                *child.plan.command,
                start_new_session=True,
                env=child.plan.environment,
            )
        try:
            await pipes.exited
            # read its last output; its children may hold the pipes open, so do not wait for those
            await asyncio.wait({pipes.silent}, timeout=_LAST_WORDS_S)
            return transport.get_returncode()
        finally:
            transport.close()
            async with self._changed:
                child.process = None
                self._changed.notify_all()
            self._is_up.labels(child.plan.name).set(0)

    def _note_start(self, child: _Child, transport: asyncio.SubprocessTransport) -> None:
        child.process = transport
        self._change(child, State.STARTING, f"process {transport.get_pid()}")
        if self._stopping.is_set():
            _signal(child, signal.SIGTERM)

    def _take_line(self, child: _Child, line: str, is_error: bool) -> None:
        if not is_error and line.startswith(READY) and child.state is State.STARTING:
            child.ready = _decode_ready(line.removeprefix(READY))
            self._is_up.labels(child.plan.name).set(1)
            said = ", ".join(f"{key} {_plain(value)}" for key, value in child.ready.items())
            self._change(child, State.RUNNING, said)
        elif is_error and line.startswith(ERROR):
            child.last_error = line.removeprefix(ERROR)
        else:
            self._listener.wrote(child.plan.name, line, is_error=is_error)

    def _change(self, child: _Child, state: State, detail: str) -> None:
        child.state, child.detail = state, detail
        self._listener.changed(child.plan.name, state, detail)
        if all(each.state is State.RUNNING for each in self._children.values()):
            self._listener.became_healthy(len(self._children))


async def _finish(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


def _signal(child: _Child, number: signal.Signals) -> None:
    if child.process is not None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)


def _how_ended(child: _Child, code: int | None) -> str:
    if code is None:
        return child.last_error
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return child.last_error or f"ended with exit code {code}"


def _decode_ready(text: str) -> dict[str, object]:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=dict[str, object])
    return {}


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
