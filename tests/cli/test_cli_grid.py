"""Every command of the tree in bad conditions: one line, the right exit code, no traceback, nothing left behind.

A new command is covered automatically. `grid_site` has arguments for it if its parameter names are already known.
"""

from __future__ import annotations

import contextlib
import shutil
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import dovetail
from cli.grid_site import EXPECTED, OWN, READY, SPARK, commands, make_kept, share, words_of
from cli.zygote import Case, Outcome, Zygote
from dovetail.cli.main import main
from dovetail.journal.reader import JournalReader
from dovetail.model.errors import EXTRAS
from dovetail.runtime.swarm_control import CONTROL_FILE
from dovetail.runtime.won_client import AtomFile, OwnerHome

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
COMMANDS = commands()
HEAVY = ("pyarrow.dataset", "pyarrow.parquet", "deltalake", "dovetail.audit.tables", "dovetail.report.page")
NARROW = 40
DISK_BYTES = 4 << 20
IDS = {"address", "addresses", "subject"}
TAKING_MESSAGES = [name for name in COMMANDS if IDS & {parameter.name for parameter in COMMANDS[name].params}]


class Grid:
    """A running site, a stopped one, and a way to run commands."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.kept = base / "kept"
        self.kept.mkdir()
        self.places = make_kept(self.kept)
        self.environment = {"DOVETAIL_CONFIG_DIR": str(base / "config"), "PYTHONWARNINGS": "default"}
        self._well: dict[str, Outcome] = {}
        self._stack = contextlib.ExitStack()
        self.site = self._stack.enter_context(dovetail.local("pcp", "won", "swarm", directory=base / "live"))
        for name in ("won:ann", "won:ben", "won:doomed", "swarm:ann"):
            self.site.connect(name)
        self.zygote = Zygote(ROOT / "src", *HEAVY)
        self._stack.callback(self.zygote.close)
        self.poor = Zygote(ROOT / "src")
        self._stack.callback(self.poor.close)
        self.live = {
            "peer": str(base / "live" / "peers" / "ann"),
            "node": self.site.node,
            "target": f"{self.site.node}/atom/ben#chat",
            "home": str(base / "live" / "owners" / "ann"),
            "doomed": str(base / "live" / "owners" / "doomed"),
            "nobody": "http://127.0.0.1:1",
        }
        self.save_context("live", self.site.url or "")
        with JournalReader.open(self.kept / "broker" / "journal.db") as reader:
            self.shared, self.twins = with_one_prefix({hop.message.hex() for hop in reader.hops(0)})
        messages = dovetail.open_tables(self.kept / "tables")["messages"].rows()
        self.audited, self.audited_twins = with_one_prefix({row["message"] for row in messages})

    def save_context(self, name: str, url: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOVETAIL_CONFIG_DIR", self.environment["DOVETAIL_CONFIG_DIR"])
            assert main(["context", "save", name, "--url", url, "--as", "pcp://grid/agent"]) == 0
            if name == "live":
                assert main(["context", "use", name]) == 0

    def words(self, name: str, **other: str) -> list[str]:
        return words_of(name, COMMANDS[name], {**self.places, **self.live, **other})

    @contextlib.contextmanager
    def directory(self, *, is_full: bool = False) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The files of the stopped site, in a separate directory; optionally on a full disk."""
        with tempfile.TemporaryDirectory(dir=self.base, prefix="case-") as name, contextlib.ExitStack() as stack:
            cwd, limits = Path(name), {}
            if is_full:
                mounted = subprocess.run(
                    ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", name], check=False
                )
                if mounted.returncode == 0:
                    stack.callback(subprocess.run, ["umount", "-l", name], check=True)
                else:
                    limits = {"max_file_bytes": 0}  # the same for files, if we may not mount
            shutil.copytree(self.kept, cwd, dirs_exist_ok=True)
            if is_full and not limits:
                fill(cwd / "filler")
            yield cwd, limits

    def run(self, name: str, words: list[str], cwd: Path, **more: Any) -> Outcome:
        if name in READY:
            more = {"interrupt_when": READY[name]} | more
        environment = self.environment | more.pop("environment", {})
        zygote = self.poor if more.get("absent") else self.zygote
        outcome = zygote.run(Case(words, str(cwd), environment, **more))
        assert outcome.code is not None, f"it does not end: {outcome}"
        assert outcome.survivors == []
        for mark in ("Traceback", "Exception ignored", "Warning:", "internal error"):
            assert mark not in outcome.err + outcome.out, outcome
        return outcome

    def well(self, name: str) -> Outcome:
        """The outcome if all is well; calls are counted."""
        if name not in self._well:
            with self.directory() as (cwd, _):
                narrow = {"stdin": "closed", "stdout": "terminal", "columns": NARROW}
                self._well[name] = self.run(name, self.words(name), cwd, interrupt=0, **narrow)
        return self._well[name]

    def close(self) -> None:
        self._stack.close()


def with_one_prefix(addresses: set[str]) -> tuple[str, list[str]]:
    """A prefix that several of these have, and who has it."""
    by_prefix: dict[str, list[str]] = {}
    for address in addresses:
        by_prefix.setdefault(address[:1], []).append(address)
    prefix, several = max(by_prefix.items(), key=lambda each: len(each[1]))
    assert len(several) > 1, f"no two of {len(addresses)} messages start with the same digit"
    return prefix, several


def fill(path: Path) -> None:
    """Use up the free space of a small disk."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def files_in(directory: Path) -> set[Path]:
    return {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}


def last_line(outcome: Outcome) -> str:
    """The one line that says what is wrong."""
    lines = [line for line in outcome.err.splitlines() if line.startswith("dovetail: ")]
    assert len(lines) == 1, outcome
    return lines[0]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with tempfile.TemporaryDirectory(prefix="grid") as name:  # a short path: control sockets are limited
        grid = Grid(Path(name))
        grid.well("swarm publish")  # `swarm tail` waits for a message
        yield grid
        grid.close()


WELL = [name for name in COMMANDS if name not in SPARK]


@pytest.mark.parametrize("name", share(WELL, 0))
def test_stdin_closed_and_a_terminal_of_40_columns(grid, name):
    outcome = grid.well(name)
    assert outcome.code in ({0, 130} if name in READY else EXPECTED.get(name, {0, 3})), outcome
    if any("--markdown" in parameter.opts for parameter in COMMANDS[name].params) and name != "up":
        too_wide = [line for line in outcome.out.splitlines() if len(line) > NARROW and "  " in line.strip()]
        assert all(len(line.split("  ", 1)[0]) < NARROW // 2 and "\n" not in line for line in too_wide), too_wide


@pytest.mark.parametrize(
    "stdout", ["broken", *(pytest.param(each, marks=pytest.mark.soak) for each in ("full", "closed"))]
)
@pytest.mark.parametrize("name", share(WELL, 1))
def test_nobody_reads_what_it_prints(grid, name, stdout):
    well = grid.well(name)
    if name in READY and (stdout == "closed" or READY[name] in well.out):
        pytest.skip("nothing says when it is ready")
    with grid.directory() as (cwd, _):
        outcome = grid.run(name, grid.words(name), cwd, stdout=stdout)
    if stdout == "closed" or not well.out:
        assert outcome.code in EXPECTED.get(name, {0, 3, well.code}), outcome
    elif name in READY:  # its output there may come after the interruption
        assert outcome.code in (1, 130, 141, 0)
    elif stdout == "broken":
        assert outcome.code == 141
        assert [line for line in outcome.err.splitlines() if line.startswith("dovetail: ")] == []
    else:
        assert outcome.code == 1
        assert last_line(outcome) == "dovetail: No space left on device"


@pytest.mark.parametrize("name", [*share(WELL, 2), *sorted(SPARK)])
def test_a_full_disk(grid, name):
    with grid.directory(is_full=True) as (cwd, limits):
        if limits and name in SPARK:
            pytest.skip("nothing shows before Spark runs")
        before = files_in(cwd)
        outcome = grid.run(name, grid.words(name), cwd, **limits)
        left = files_in(cwd) - before
    if outcome.code == 1 and name not in EXPECTED:
        assert any(cause in last_line(outcome) for cause in ("No space left", "File too large", "free some space"))
        assert {path for path in left if path.suffix != ".lock"} == set()


@pytest.mark.parametrize("name", share(COMMANDS, 0))
def test_a_missing_extra(grid, name):
    with grid.directory() as (cwd, _):
        before = files_in(cwd)
        outcome = grid.run(name, grid.words(name), cwd, absent=sorted(EXTRAS))
        left = files_in(cwd) - before
    needs = (name.startswith("audit ") and name != "audit package") or name in ("demo", "report")
    assert (outcome.code == 1) == (needs or EXPECTED.get(name) == {1}), outcome
    if needs:
        assert "is not installed; get it with: pip install 'dovetail[" in last_line(outcome)
        assert left == set()


@pytest.mark.parametrize("name", share((name for name in COMMANDS if name != "demo"), 1))  # it needs none
def test_files_that_are_not_there(grid, name, tmp_path):
    outcome = grid.run(name, grid.words(name), tmp_path)
    if outcome.code not in (0, 3, 130):
        assert outcome.code in (1, 2, 4)
        last_line(outcome)
        assert files_in(tmp_path) == set()


@pytest.mark.parametrize("name", TAKING_MESSAGES)
def test_ids_that_nobody_has(grid, name):
    with grid.directory() as (cwd, _):
        nobody = "00" * 32
        words = grid.words(name, address=nobody, reply=nobody, audited=nobody)
        outcome = grid.run(name, words, cwd)
        assert outcome.code == 1
        assert nobody[:8] in last_line(outcome)


@pytest.mark.parametrize("moment", [0.5, *(pytest.param(n / 20, marks=pytest.mark.soak) for n in range(20))])
@pytest.mark.parametrize("name", share(WELL, 2))
def test_ctrl_c(grid, name, moment):
    calls = grid.well(name).calls
    with grid.directory() as (cwd, _):
        outcome = grid.run(name, grid.words(name), cwd, interrupt=max(2, int(moment * calls)))
    assert outcome.code in (*EXPECTED.get(name, {0, 3}), 130), outcome  # it may have been done before
    assert not [line for line in outcome.err.splitlines() if line.startswith("dovetail: ")] or outcome.code != 130


LONG = {("sim run", "--seeds"), ("swarm tail", "--count"), ("sim run", "--duration")}
"""With a huge number these only run for long."""
NUMBERS = [
    (name, parameter.opts[-1])
    for name, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option" and not parameter.is_flag
    if {int, float} & set(get_args(kind := parameter.type_descriptor.annotation) or (kind,))
]


@pytest.mark.parametrize(("name", "option"), share((each for each in NUMBERS if each[0] not in SPARK), 0))
def test_numbers_beyond_all_use(grid, name, option):
    """Whatever an option's value is, no command ends in an error of Python; `Grid.run` checks that."""
    for number in ("inf", "1e300", "9" * 30, "-1"):
        if (name, option) in LONG and number == "9" * 30:
            continue
        with grid.directory() as (cwd, _):
            grid.run(name, [*grid.words(name), option, number], cwd)


class Other(socketserver.StreamRequestHandler):
    """A server of something else: it answers whatever it is asked, and not what was asked."""

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture(scope="module", params=["no", "the wrong"])
def elsewhere(request: pytest.FixtureRequest, grid: Grid) -> Iterator[dict[str, str]]:
    """Places where no server is, or another one."""
    directory = grid.base / request.param.replace(" ", "-")
    peer = directory / "peer"
    peer.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        port = 1
        if request.param != "no":
            for server in (
                socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other),
                socketserver.ThreadingUnixStreamServer(str(peer / CONTROL_FILE), Other),
            ):
                stack.enter_context(server)
                threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
                stack.callback(server.shutdown)
                port = server.server_address[1] if isinstance(server, socketserver.TCPServer) and port == 1 else port
        node = f"http://127.0.0.1:{port}/won/resource"
        owner = OwnerHome.create(directory / "home", AtomFile(f"{node}/atom/ann", (f"{node}/atom/ann#chat",)))
        grid.save_context(request.param.replace(" ", "-"), f"ws://127.0.0.1:{port}/pcp")
        yield {
            "context": request.param.replace(" ", "-"),
            "node": node,
            "peer": str(peer),
            "target": f"{node}/atom/ben#chat",
            "home": str(owner.directory),
            "doomed": str(owner.directory),
        }


def speaks(name: str) -> bool:
    """Whether a command speaks to a server that is there already."""
    names = {parameter.name for parameter in COMMANDS[name].params}
    line = OWN.get(name, "")
    return "url" in names - {"name"} or any(place in line for place in ("{node}", "{peer}", "{home}", "{doomed}"))


@pytest.mark.parametrize("name", [name for name in COMMANDS if speaks(name) and name != "context save"])
def test_no_server_or_the_wrong_one(grid, elsewhere, name):
    """At once, with the server's name; `pcp trace` asks none where it has a --client, and `won log` has its own."""
    with grid.directory() as (cwd, _):
        before = files_in(cwd)
        places = {key: value for key, value in elsewhere.items() if key != "context"}
        environment = {"DOVETAIL_CONTEXT": elsewhere["context"]}
        outcome = grid.run(name, grid.words(name, **places), cwd, environment=environment, interrupt_when=None)
        assert files_in(cwd) == before
    if name in ("pcp trace", "won log"):
        assert outcome.code in (0, 3)
    else:
        assert outcome.code == 4, outcome
        assert any(place in last_line(outcome) for place in ("ws://127.", "http://127.", elsewhere["peer"])), outcome


def test_a_prefix_that_several_messages_have(grid):
    """One line with the candidates, by every command that takes a message."""
    assert {"receipt build", "receipt show", "receipt fork", "audit why"} <= set(TAKING_MESSAGES)
    for name in TAKING_MESSAGES:
        shared, several = (grid.audited, grid.audited_twins) if name == "audit why" else (grid.shared, grid.twins)
        with grid.directory() as (cwd, _):
            outcome = grid.run(name, grid.words(name, address=shared, audited=shared), cwd)
        assert outcome.code == 1, outcome
        assert sum(address[:20] in last_line(outcome) for address in several) >= 2, outcome
