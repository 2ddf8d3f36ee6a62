"""Two nodes under `dovetail up`, one killed with -9 amid traffic: it restarts, all chains complete."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest

from dovetail.keys import create_signing_key
from dovetail.runtime.won_client import AtomFile, OwnerHome
from dovetail.won.chain import ChainState
from dovetail.won.integrity import check_conversation
from dovetail.won.message import decode_message
from dovetail.won.vocabulary import MessageType
from system.pcp_site import scrape, until
from system.up_site import dovetail, free_port, running
from system.won_processes import connect, conversation_of, create, say

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]
ROUNDS = 40


class Place:
    """A directory with `site.toml`, two nodes in it, and their keys."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = [free_port(), free_port()]
        self.metrics = [free_port(), free_port()]
        self.uris = [f"https://localhost:{port}/won/resource" for port in self.ports]
        self.journals = [directory / "journals" / f"localhost_{port}.db" for port in self.ports]
        text = "[supervisor]\nrestart_min_s = 0.1\n[journal]\ncheckpoint_interval_s = 0.5\n"
        for uri, port, metrics, journal in zip(self.uris, self.ports, self.metrics, self.journals, strict=True):
            text += f'[[won]]\nuri = "{uri}"\nlisten = "127.0.0.1:{port}"\nmetrics = "127.0.0.1:{metrics}"\n'
            text += f'journal = "{journal}"\n[won.limits]\nretry_ms = 50\nmax_retry_ms = 500\n'
        (directory / "site.toml").write_text(text)
        self.run("keys", "ca")
        self.run("keys", "issue", "localhost", "--kind", "peer")
        for uri in self.uris:
            create_signing_key(directory / "keys", uri)

    def run(self, *arguments: object) -> str:
        ran = dovetail(*arguments, cwd=self.directory)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def home(self, number: int, name: str) -> OwnerHome:
        atom = f"{self.uris[number]}/atom/{name}"
        file = AtomFile(atom, (f"{atom}#chat",), str(self.directory / "keys" / "ca.pem"))
        return OwnerHome.create(self.directory / name, file)


async def talk_while_one_is_killed(place, up):
    alice, bob = await create(place.home(0, "alice")), await create(place.home(1, "bob"))
    await connect(alice, bob)
    label = f"won/localhost:{place.ports[1]}"
    said = []
    for number in range(ROUNDS):
        for one, other in ((alice, bob), (bob, alice)):
            target = other.home.file.sockets[0]
            said.append((one, await say(one, MessageType.CONNECTION, target, f"{number}")))
        await asyncio.sleep(0.01)
        if number == ROUNDS // 3:
            os.kill(up.pid_of(label), signal.SIGKILL)
        if number == ROUNDS // 2:
            await asyncio.to_thread(up.await_line, f" {label}: waiting: was killed by SIGKILL; starts again in ")
    await asyncio.to_thread(up.await_line, f" {label}: running: ", 2)
    for one, message in said:
        assert await one.wait_settled(message.uri, 60) is ChainState.COMPLETE
    for client in (alice, bob):
        await until(
            lambda client=client: all(
                client.owner.conversations.state_of(message.uri) is ChainState.COMPLETE for _, message in said
            ),
            60,
        )
    numbers = [await scrape(port) for port in place.metrics]
    health = [await scrape(port, "/healthz") for port in place.metrics]
    await alice.__aexit__()
    await bob.__aexit__()
    return [message.uri for _, message in said], [alice.home, bob.home], numbers, health


def test_killed_node_is_started_again_and_all_chains_complete():
    with tempfile.TemporaryDirectory(prefix="wonup") as name:
        place = Place(Path(name))
        with running(place.directory, "site.toml") as up:
            for port in place.ports:
                up.await_line(f" won/localhost:{port}: running: ")
            uris, homes, numbers, health = asyncio.run(talk_while_one_is_killed(place, up))
            assert up.stop() == 0
        assert health == [(200, "ok\n")] * 2
        for status, text in numbers:
            assert status == 200
            assert f'dovetail_won_chains{{state="complete"}} {ROUNDS + 1}.0' in text
            assert 'dovetail_won_chains{state="awaiting_recipient"} 0.0' in text
        copies = [conversation_of(path) for path in (*place.journals, *(home.journal_path for home in homes))]
        assert len(copies[0]) == 3 * (len(uris) + 2)
        assert set(uris) <= {decode_message(raw).uri for raw in copies[0]}
        for copy in copies[1:]:
            assert set(copy) == set(copies[0])
        signers = {decode_message(raw).signer for raw in copies[0]}
        assert check_conversation(copies[0], homes[0].find_keys(signers)) == []
        assert place.run("journal", "verify", *place.journals).count(": intact; ") == 2
