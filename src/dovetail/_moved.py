"""Old import paths, kept working for one release: importing one warns and returns the module under its new name."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

MOVED = {
    "beginning": "model.address",
    "config": "site.config",
    "config.fields": "site.config.fields",
    "config.reader": "site.config.reader",
    "config.schema": "site.config.schema",
    "config.sections": "site.config.sections",
    "config.servers": "site.config.servers",
    "dashboard.places": "dashboard.site_sources",
    "demo.rogue": "demo.faulty_client",
    "demo.sightings": "demo.evidence",
    "doctor": "site.doctor",
    "doctor.finding": "site.doctor.finding",
    "doctor.machine": "site.doctor.machine",
    "doctor.site": "site.doctor.site",
    "errors": "model.errors",
    "hop": "model.hop",
    "java": "audit.java",
    "journal.checkpoint": "tlog.checkpoint",
    "journal.index": "lake.index",
    "journal.lake": "lake.manifest",
    "journal.merkle": "tlog.tree",
    "journal.rows": "lake.rows",
    "journal.seal": "lake.seal",
    "journal.segments": "lake.segments",
    "journal.tree": "journal.stored_tree",
    "logs": "cli.logs",
    "pcp.grants": "pcp.permission_cache",
    "pcp.template": "pcp.frame_template",
    "pcp.timeouts": "pcp.idle_timers",
    "pipeline": "audit",
    "pipeline.alerts": "audit.alerts",
    "pipeline.chatter": "audit.stderr_filter",
    "pipeline.checks": "audit.checks",
    "pipeline.compaction": "lake.compact_plan",
    "pipeline.decode": "audit.decode",
    "pipeline.decode_pcp": "audit.decode",
    "pipeline.decode_swarm": "audit.decode",
    "pipeline.decode_won": "audit.decode",
    "pipeline.facts": "audit.ingest_log",
    "pipeline.following": "audit.follow",
    "pipeline.integrity": "audit.integrity",
    "pipeline.jobs": "audit",
    "pipeline.jobs.compact": "audit.compact",
    "pipeline.jobs.run": "audit.run",
    "pipeline.jobs.touched": "audit.changeset",
    "pipeline.leaves": "audit.leaves",
    "pipeline.native": "audit.native",
    "pipeline.progress": "audit.progress",
    "pipeline.reading": "audit.tables",
    "pipeline.reference": "audit.reference",
    "pipeline.removal": "lake.retain",
    "pipeline.rewrite": "lake.rewrite",
    "pipeline.schemas": "audit.schemas",
    "pipeline.session": "audit.session",
    "pipeline.settings": "audit.settings",
    "pipeline.signatures": "audit.decode",
    "pipeline.sources": "audit.sources",
    "pipeline.standing": "audit.active_manifests",
    "pipeline.steps": "audit.steps",
    "pipeline.story": "audit.message_trace",
    "pipeline.summary": "audit.summary",
    "pipeline.transforms": "audit.transforms",
    "pipeline.transforms.chains": "audit.transforms.chains",
    "pipeline.transforms.coverage": "audit.transforms.coverage",
    "pipeline.transforms.deliveries": "audit.transforms.deliveries",
    "pipeline.transforms.edges": "audit.transforms.suspect_links",
    "pipeline.transforms.forks": "audit.transforms.forks",
    "pipeline.transforms.gaps": "audit.transforms.gaps",
    "pipeline.transforms.hops": "audit.transforms.hops",
    "pipeline.transforms.messages": "audit.transforms.messages",
    "pipeline.transforms.sightings": "audit.transforms.holdings",
    "pipeline.transforms.skew": "audit.transforms.skew",
    "pipeline.transforms.swarm_messages": "audit.fabrics.swarm",
    "pipeline.transforms.traffic": "audit.transforms.traffic",
    "pipeline.walk": "audit.merkle_scan",
    "pipeline.webhook": "audit.webhook",
    "receipt.evidence": "receipt.build_evidence",
    "receipt.exchange": "receipt.request_reply",
    "receipt.journal_source": "journal.source",
    "receipt.lake_source": "lake.reader",
    "receipt.memory": "receipt.witness_memory",
    "receipt.note": "tlog.note",
    "receipt.source": "journal.hop_source",
    "receipt.transcript": "receipt.build_conversation",
    "report.route": "report.spread",
    "shells": "runtime",
    "shells.backoff": "site.backoff",
    "shells.lines": "site.output_lines",
    "shells.listening": "runtime.listening",
    "shells.member": "site.server_process",
    "shells.metrics": "runtime.metrics",
    "shells.pcp_access": "runtime.pcp_access",
    "shells.pcp_client": "runtime.pcp_client",
    "shells.pcp_metrics": "runtime.pcp_metrics",
    "shells.pcp_serve": "runtime.pcp_serve",
    "shells.pcp_server": "runtime.pcp_server",
    "shells.pcp_tls": "runtime.tls",
    "shells.preflight": "site.preflight",
    "shells.purger": "journal.purger",
    "shells.sealer": "lake.sealer",
    "shells.site": "site.servers",
    "shells.supervisor": "site.supervisor",
    "shells.swarm_batches": "runtime.swarm_batches",
    "shells.swarm_control": "runtime.swarm_control",
    "shells.swarm_metrics": "runtime.swarm_metrics",
    "shells.swarm_node": "runtime.swarm_node",
    "shells.swarm_solver": "runtime.swarm_solver",
    "shells.swarm_udp": "runtime.swarm_udp",
    "shells.websocket": "runtime.websocket",
    "shells.won_client": "runtime.won_client",
    "shells.won_driver": "runtime.won_links",
    "shells.won_metrics": "runtime.won_metrics",
    "shells.won_server": "runtime.won_server",
    "signing": "tlog.keys",
    "sim.pcp_play": "sim.pcp_scenario",
    "sim.place": "sim.process",
    "sim.swarm_play": "sim.swarm_scenario",
    "sim.won_play": "sim.won_scenario",
    "swarm.exchange": "swarm.peer_exchange",
    "swarm.latecomers": "swarm.late_messages",
    "won.blocks": "won.readers.blocks",
    "won.dispatch": "won.node_outboxes",
    "won.head": "won.readers.head",
    "won.herald": "won.owner_log_fanout",
    "won.lines": "won.readers.lines",
    "won.scribe": "won.response_builder",
    "won.transcript": "won.conversation_text",
    "won.turn": "won.output_buffer",
}
"""Old and new names below `dovetail`."""


class _MovedFinder:
    """Finds modules by their old names; runs first, because the files of a renamed package are found by either name.

    It has the methods of a finder and a loader but not their base classes: importing those costs 20 ms.
    """

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root != "dovetail" or rest not in MOVED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> None:
        """Create the module as usual."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace `module` with the module under its new name."""
        new = f"dovetail.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(f"{module.__name__} has moved to {new}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(new)


def install() -> None:
    """Accept old import paths from now on."""
    if not any(isinstance(finder, _MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedFinder())
