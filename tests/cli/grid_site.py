"""For the grid of bad input: a running site, the files of a stopped one, and valid arguments for every command."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import dovetail
from dovetail.cli.main import main, root
from dovetail.keys.authority import CertificateKind, Names, create_authority, load_authority
from dovetail.keys.signing import create_signing_key
from report.sample_tables import World, add_pcp

NODE = "http://127.0.0.1:1/won/resource"

VALUES = {
    "address": "{address}",
    "addresses": "{address} {reply}",
    "before": "2000-01-01",
    "certificate": "keys/ann.pem",
    "config": "site/site.toml",
    "directory": "{peer}",
    "file": "site/site.toml",
    "files": "m.receipt",
    "journal": "broker/journal.db",
    "lake": "lake",
    "message_type": "text",
    "name": "new",
    "node": "{node}",
    "path": "broker/journal.db",
    "paths": "broker/journal.db",
    "request": "ask",
    "seen": "seen",
    "sender": "pcp://ann/agent",
    "settings": "swarm.toml",
    "shell": "bash",
    "signing_key": "keys/node.skey",
    "subject": "{address}",
    "table": "findings",
    "tables": "tables",
    "target": "{target}",
    "targets": "pcp://ben/agent",
    "text": "hello",
    "trust": "broker",
    "uri": "https://127.0.0.1:1/won/resource",
}
"""Values for required parameters of these names; placeholders are of the running site."""

FROM_CONTEXT = {"lake", "paths", "tables", "trust"}
"""What commands would take from the context, which has none of it here."""

OWN = {
    "config show": "site/site.toml",
    "audit run": "lake --tables new-tables",
    "audit follow": "lake --tables new-tables",
    "audit package": "new-package",
    "audit why": "{audited} --tables tables",
    "context use": "live",
    "dashboard": "--journals broker --port 0",
    "demo": "--out demo-out --scale 0.1",
    "dev": "--port 0",
    "doctor": "site/site.toml",
    "journal recover": "broker/journal.db --signing-key {signing_key}",
    "journal checkpoint": "broker/journal.db --signing-key {signing_key}",
    "journal seal": "broker/journal.db --lake new-lake --signing-key {signing_key}",
    "journal purge": "broker/journal.db --before 2000-01-01 --lake lake --signing-key {signing_key}",
    "keys ca": "--dir new-keys",
    "keys issue": "new --dir keys --kind client",
    "keys revoke": "keys/ann.pem --dir keys",
    "keys crl": "--dir keys",
    "keys show": "keys",
    "otel": "broker/journal.db --once --endpoint {nobody}",
    "pcp serve": "--insecure-plain --allow-all --port 0 --journal new/journal.db",
    "pcp send": "pcp://ben/agent 1",
    "pcp listen": "--count 1",
    "pcp trace": "text pcp://ben/agent --config broker.toml --sender pcp://ann/agent",
    "pcp decode": "00",
    "receipt build": "{address} --journal broker/journal.db -o built.receipt",
    "receipt complete": "--from 2026-01-01 --until 2099-01-01 --journal broker/journal.db",
    "receipt show": "{address} --journal broker/journal.db --trust broker",
    "receipt cosign": "ask --trust broker --seen seen --signing-key keys/witness.skey",
    "receipt accuse": "m.receipt m.receipt --trust broker",
    "receipt fork": "{address} {reply} --trust broker --journal broker/journal.db",
    "sim run": "--seeds 1 --duration 1",
    "swarm serve": "--settings swarm.toml --dir new-peer --listen 127.0.0.1:0",
    "swarm publish": "hello --dir {peer}",
    "swarm tail": "--since 2020-01-01 -n 1 --dir {peer}",
    "swarm status": "--dir {peer}",
    "swarm decode": "00",
    "up": "site/site.toml",
    "won decode": "m.trig",
    "won chains": "m.trig",
    "won serve": "--uri http://127.0.0.1:1/won/resource --signing-key keys/node.skey --journal new/j.db"
    " --listen 127.0.0.1:0",
    "won create": "--node {node} --home new-home",
    "won connect": "{target} --home {home}",
    "won send": "{target} hello --home {home}",
    "won close": "{target} --home {home}",
    "won replace": "--home {home}",
    "won activate": "--home {home}",
    "won deactivate": "--home {home}",
    "won delete": "--home {doomed}",
    "won get": "{node}/atom/ann --home {home}",
    "won log": "--home {home}",
}
"""Commands that need more than their required parameters, or less common ones."""

SPARK = {"audit run", "audit follow", "demo"}
"""Commands that start Spark if all is well."""
EXPECTED = {"otel": {4}, "receipt accuse": {1}, "receipt fork": {1}}
"""Commands that here get input they must refuse; the others succeed: 0, or 3."""
READY = {
    "dashboard": "Ctrl-C ends it",
    "dev": "Ctrl-C ends it",
    "pcp listen": "listens at",
    "pcp serve": "listening on",
    "swarm serve": "listen",
    "up": "processes run",
    "won serve": "listens on port",
}
"""Commands that run until they are interrupted, and what they print when ready."""


def commands() -> dict[str, Any]:
    """Every command by name, from the tree that the entry point walks."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "list_commands"):
            for name in command.list_commands(None):
                yield from walk(command.get_command(None, name), (*words, name))
        else:
            yield " ".join(words), command

    return dict(walk(typer.main.get_group(root), ()))


def words_of(name: str, command: Any, places: dict[str, str]) -> list[str]:
    """A command line for which the command succeeds."""
    line = OWN.get(name)
    if line is None:
        parts = []
        for parameter in command.params:
            if parameter.required or parameter.name in FROM_CONTEXT:
                value = VALUES[parameter.name]  # a new parameter name: add a value to VALUES
                parts.append(value if parameter.param_type_name == "argument" else f"{parameter.opts[-1]} {value}")
        line = " ".join(parts)
    return [*name.split(), *line.format(**places).split()]


def make_kept(directory: Path) -> dict[str, str]:
    """What a stopped site left: journals, lake, tables, keys, a receipt, and settings files."""
    with dovetail.local(directory=directory) as site:

        async def talk() -> tuple[str, str]:
            async with site.connect("pcp://ann/agent") as ann, site.connect("pcp://ben/agent") as ben:
                asked = await ann.send("pcp://ben/agent", "what?")
                answered = await (await ben.receive(5)).reply("that")
                for _ in range(16):  # two of more than 16 addresses start with the same digit
                    await ann.send("pcp://ben/agent", "again")
                return asked.address, answered.address

        address, reply = asyncio.run(talk())
        site.receipt(address).save(directory / "m.receipt")
    signing_key = next((directory / "broker").glob("*.skey"))
    dovetail.open_lake(directory / "lake").seal([directory / "broker" / "journal.db"])
    world = World()
    add_pcp(world, messages=20)
    world.write(directory / "tables")
    keys = directory / "keys"
    create_authority(keys, "grid")
    load_authority(keys).issue("ann", CertificateKind.CLIENT, Names())
    for name in ("node", "witness"):
        made, _ = create_signing_key(keys, name if name == "witness" else NODE)
        made.rename(keys / f"{name}.skey")
    (directory / "site").mkdir()
    create_signing_key(directory / "site" / "keys", "pcp://broker/server")
    (directory / "site" / "site.toml").write_text('[[pcp]]\nname = "broker"\nport = 0\ninsecure_plain = true\n')
    (directory / "broker.toml").write_text('[pcp]\nname = "broker"\nrules = []\n')
    (directory / "swarm.toml").write_text('name = "grid"\nwork = 1000\n')
    (directory / "m.trig").write_text("")
    request = dovetail_main_out("receipt", "ask", "--journal", str(directory / "broker" / "journal.db"))
    (directory / "ask").write_text(request)
    return {
        "address": address,
        "reply": reply,
        "audited": world.rows["messages"][0]["message"].hex(),
        "signing_key": str(signing_key.relative_to(directory)),
    }


def dovetail_main_out(*words: str) -> str:
    """The output of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main(words) == 0
    return out.getvalue()


def share(cases: Iterable[Any], turn: int) -> list[Any]:
    """Every third case in `make test`, beginning with this one; the others, too, in `make soak`."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(
            *row,
            marks=() if number % 3 == turn else pytest.mark.soak,
            id="-".join(each if isinstance(each, str) else "-".join(each) for each in row),
        )
        for number, row in enumerate(rows)
    ]
