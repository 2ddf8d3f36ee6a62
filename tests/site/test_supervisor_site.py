from types import SimpleNamespace

import msgspec
import pytest

from dovetail.audit.settings import load_settings
from dovetail.journal.folder import PEER_JOURNAL
from dovetail.model.errors import ConfigError, UsageError
from dovetail.runtime import swarm_node
from dovetail.site.config import load_config
from dovetail.site.server_process import SETTLE_US, run_process
from dovetail.site.servers import ShutdownStage, Site, write_agreements
from dovetail.swarm.settings import parse_swarm_settings

SITE = """
[journal]
durability = "relaxed"
relaxed_sync_s = 2
[[pcp]]
name = "north"
role = "hub"
[[pcp]]
name = "south"
port = 8143
role = "spare"
insecure_plain = true
durability = "full"
journal = "elsewhere/south.journal"
[[won]]
uri = "https://node.example:8443/won/resource"
role = "hub"
listen = "[::1]:8443"
limits.window = 7
[[swarm]]
name = "fleet"
epoch_ms = 5000
secret = "00112233445566778899aabbccddeeff00112233"
[[swarm]]
name = "fleet"
epoch_ms = 5000
peer = "second"
listen = ["0.0.0.0:4712", "[::]:4712"]
metrics = "127.0.0.1:9000"
[audit]
enabled = true
role = "analysis"
[dashboard]
enabled = true
role = "desk"
"""


@pytest.fixture
def load(tmp_path):
    def run(text: str = SITE, *roles: str) -> Site:
        path = tmp_path / "site.toml"
        path.write_text(text)
        return Site.choose(load_config(path, {}).config, roles)

    return run


def names(site: Site) -> list[str]:
    return [process.name for process in site.processes()]


def test_without_roles_everything_runs(load):
    assert names(load()) == [
        "pcp/north",
        "pcp/south",
        "won/node.example:8443",
        "swarm/fleet/peer",
        "swarm/fleet/second",
        "seal",
        "audit",
        "dashboard",
    ]


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (["hub"], ["pcp/north", "won/node.example:8443", "seal"]),
        (["spare"], ["pcp/south", "seal"]),
        (["analysis"], ["audit"]),
        (["desk"], ["dashboard"]),
        (["spare", "analysis"], ["pcp/south", "seal", "audit"]),
    ],
)
def test_roles_choose(load, roles, expected):
    assert names(load(SITE, *roles)) == expected


def test_watchers_stop_first_and_sealing_last(load):
    stages = {process.name: process.stage for process in load().processes()}
    assert stages["audit"] < stages["pcp/north"] == stages["swarm/fleet/peer"] < stages["seal"] == ShutdownStage.SEALING


def test_only_journals_of_this_machine_are_sealed(load, tmp_path):
    assert load(SITE, "spare").journals() == [tmp_path / "elsewhere" / "south.journal"]
    assert load().journals() == [
        tmp_path / "journals" / "pcp_north_server.journal",
        tmp_path / "elsewhere" / "south.journal",
        tmp_path / "journals" / "https_node.example_8443_won_resource.journal",
        tmp_path / "journals" / "swarm_fleet_peer" / "journal.db",
        tmp_path / "journals" / "swarm_fleet_second" / "journal.db",
    ]


def test_the_journal_of_a_peer_has_the_name_that_the_peer_gives_it():
    assert PEER_JOURNAL == swarm_node.JOURNAL_FILE


def test_a_broker_gets_its_files_from_the_keys_directory(load, tmp_path):
    site = load()
    keys = tmp_path / "keys"
    north = site.broker_settings(site.config.pcp[0])
    assert (north.certificate, north.key, north.authority) == tuple(
        str(keys / name) for name in ("north.pem", "north.key", "ca.pem")
    )
    assert north.signing_key == str(keys / "pcp_north_server.skey")
    assert north.revocations is None
    keys.mkdir()
    (keys / "crl.pem").touch()
    assert site.broker_settings(site.config.pcp[0]).revocations == str(keys / "crl.pem")
    plain = site.broker_settings(site.config.pcp[1])
    assert (plain.certificate, plain.revocations) == (None, None)


def test_journals_behave_as_the_file_says_and_a_table_may_differ(load):
    site = load()
    north, south = (site.journal_options(table) for table in site.config.pcp)
    assert (north.durability, south.durability) == ("relaxed", "full")
    assert north.relaxed_sync_s == south.relaxed_sync_s == 2
    assert [site.broker_settings(table).durability for table in site.config.pcp] == ["relaxed", "full"]


def test_a_broker_purges_nothing_that_it_may_still_deliver(load, monkeypatch):
    journal, asked = SimpleNamespace(identity=SimpleNamespace(verifier=None)), {}
    monkeypatch.setattr("dovetail.runtime.pcp_serve.run_broker", lambda *_, on_journal, **__: on_journal(journal))
    monkeypatch.setattr("dovetail.journal.purger.start_purging", lambda *_, **given: asked.update(given))
    site = load("[[pcp]]\nclock_skew_ms = 5000\ninsecure_plain = true\n")
    run_process(site, site.processes()[0], print, lambda: site)
    assert asked["delay_us"] == 5_000_000 + SETTLE_US


def test_a_node_gets_its_own_limits(load, tmp_path):
    site = load()
    options = site.node_options(site.config.won[0])
    assert (options.host, options.port, options.settings.window) == ("::1", 8443, 7)
    assert options.certificate == str(tmp_path / "keys" / "node.example.pem")
    assert options.authority is None


def test_what_tables_listen_on(load):
    site = load()
    assert [table.listens() for table in site.servers()] == [
        [("tcp", "127.0.0.1:8142")],
        [("tcp", "127.0.0.1:8143")],
        [("tcp", "[::1]:8443")],
        [("udp", "127.0.0.1:4711")],
        [("udp", "0.0.0.0:4712"), ("udp", "[::]:4712"), ("tcp", "127.0.0.1:9000")],
    ]


def test_metrics_for_the_dashboard_are_those_that_are_served(load):
    assert load().metrics_endpoints() == [("swarm/fleet/second", "http://127.0.0.1:9000/metrics")]
    node = load('[[won]]\nuri = "https://localhost:8443/won/resource"\nmetrics = "127.0.0.1:9143"\n')
    assert node.metrics_endpoints() == [("won/localhost:8443", "http://127.0.0.1:9143/metrics")]
    (table,) = node.servers()
    assert node.node_options(table).metrics == ("127.0.0.1", 9143)
    assert ("tcp", "127.0.0.1:9143") in table.listens()
    broker = load('[[pcp]]\nmetrics_port = 9142\nmetrics_host = "::1"\n')
    assert broker.metrics_endpoints() == [("pcp/broker", "http://[::1]:9142/metrics")]


def test_whom_the_health_of_a_site_asks(load):
    server = '[[pcp]]\nmetrics_port = 9142\n[[won]]\nuri = "https://localhost:8443/won/resource"\n'
    asked = [("pcp/broker", "http://127.0.0.1:9142/healthz")]
    assert load(server).health_urls() == asked
    shown = server + '[dashboard]\nenabled = true\nlisten = "[::1]:8600"\n'
    assert load(shown).health_urls() == [*asked, ("dashboard", "http://[::1]:8600/healthz")]


def test_needed_files_come_with_the_command_that_makes_them(load, tmp_path):
    site = load(SITE, "hub")
    needed = {path.name: advice for table in site.servers() for path, advice in site.needed_files(table)}
    assert set(needed) == {
        "north.pem",
        "north.key",
        "ca.pem",
        "pcp_north_server.skey",
        "node.example.pem",
        "node.example.key",
        "https_node.example_8443_won_resource.skey",
    }
    assert "`dovetail keys issue pcp://north/server --kind signing --dir " in needed["pcp_north_server.skey"]


@pytest.mark.parametrize(
    ("text", "roles", "problem"),
    [
        ("", [], r"nothing to run: the configuration has no \[\[pcp\]\]"),
        (SITE, ["hbu"], "--role hbu: .* there are: analysis, desk, hub, spare"),
        ("[[pcp]]\n", ["hub"], "no table has a role"),
    ],
)
def test_misuse(load, text, roles, problem):
    with pytest.raises(UsageError, match=problem):
        load(text, *roles)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[pcp]]\n[[pcp]]\nport = 1\n", "two tables are pcp/broker: give one of them another name"),
        (
            '[[swarm]]\nname = "a"\n[[swarm]]\nname = "a"\n',
            "two tables are swarm/a/peer: give one of them another peer",
        ),
        ('[[pcp]]\njournal = "j"\n[[pcp]]\nname = "b"\njournal = "j"\n', "pcp/broker and pcp/b share one journal"),
    ],
)
def test_servers_of_one_machine_are_kept_apart(load, text, problem):
    with pytest.raises(ConfigError, match=problem):
        load(text)


def test_two_brokers_of_one_name_may_be_on_two_machines(load):
    text = '[[pcp]]\nrole = "a"\n[[pcp]]\nrole = "b"\n'
    assert names(load(text, "a")) == names(load(text, "b")) == ["pcp/broker", "seal"]


def test_an_unknown_process_is_misuse(load):
    with pytest.raises(UsageError, match="--only pcp/nroth: no such process; there are: pcp/north, "):
        load().process("pcp/nroth")


def test_agreements_for_the_audit_are_those_of_the_swarms_without_the_secret(load, tmp_path):
    site = load()
    (path,) = write_agreements(site.config)
    assert "secret" not in path.read_text()
    written = parse_swarm_settings((path).read_bytes(), "swarm.toml")
    assert written.swarm_address == site.config.swarm[0].swarm_address
    rules = load_settings([path]).agreements["fleet"]
    assert (rules.epoch_ms, rules.work_target) == (5000, site.config.swarm[0].rules.pow_target)
    assert msgspec.structs.asdict(written)["secret"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[pcp]]\nname = "a"\n[[pcp]]\nname = "b"\n', "pcp/a and pcp/b both listen on tcp port 8142"),
        ('[[pcp]]\n[[won]]\nuri = "https://h/won/resource"\nlisten = "0.0.0.0:8142"\n', "pcp/broker and won/h both"),
        ("[[pcp]]\nport = 8600\n[dashboard]\nenabled = true\n", "pcp/broker and dashboard both"),
        ("[[pcp]]\nmetrics_port = 8142\n", "pcp/broker listens twice on tcp port 8142"),
        ('[supervisor]\nmetrics = "127.0.0.1:8142"\n[[pcp]]\n', "pcp/broker and the supervisor both"),
    ],
)
def test_two_on_one_port_are_told_before_anything_starts(load, text, words):
    with pytest.raises(ConfigError, match=words):
        load(text)


def test_one_port_may_be_had_twice_on_other_addresses_for_other_kinds_or_roles(load):
    text = """
    [[pcp]]
    role = "a"
    port = 4711
    [[swarm]]
    name = "s"
    role = "a"
    [[pcp]]
    name = "second"
    role = "a"
    host = "127.0.0.2"
    port = 4711
    [[pcp]]
    name = "third"
    role = "b"
    port = 4711
    [[pcp]]
    name = "any"
    role = "a"
    port = 0
    [[pcp]]
    name = "any-2"
    role = "a"
    port = 0
    """
    assert len(load(text, "a").servers()) == 5
