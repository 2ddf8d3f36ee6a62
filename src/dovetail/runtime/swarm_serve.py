"""A peer as a process: its control socket, metrics and signals."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.runtime.loop import stop_event, wait_unless_failed
from dovetail.runtime.metrics import MetricsServer
from dovetail.runtime.process_memory import keep_memory
from dovetail.runtime.swarm_control import CONTROL_FILE, ControlServer
from dovetail.runtime.swarm_metrics import peer_registry
from dovetail.runtime.swarm_node import SwarmNode


async def serve_peer(
    node: SwarmNode, metrics: tuple[str, int] | None, on_ready: Callable[[dict[str, object]], None]
) -> None:
    """Run a peer until SIGTERM or SIGINT; raises if it cannot start or can no longer write its journal."""
    stopped = stop_event()
    control = ControlServer(node, node.directory / CONTROL_FILE)
    server = MetricsServer(peer_registry(node), lambda: node.health)
    async with node:
        try:
            await control.start()
            ready: dict[str, object] = {"server": node.peer.uri, "listen": node.endpoints}
            if metrics is not None:
                ready["metrics_port"] = await server.start(*metrics)
            keep_memory()
            on_ready(ready)
            await wait_unless_failed(stopped, node.failed)
        finally:
            await control.stop()
            await server.stop()
