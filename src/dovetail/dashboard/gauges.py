"""The metrics of the servers: their Prometheus endpoints, polled concurrently and read with a size limit.

An endpoint has a few seconds for its whole answer and is polled independently of everything else that the dashboard
shows: one that is slow or gone delays only its own figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from dovetail.model.errors import ConnectFailed, UsageError
from dovetail.runtime.http import MAX_DOCUMENT_BYTES, probe

MAX_ENDPOINTS = 64
MAX_FIGURES = 400
TIMEOUT_S = 2.0
_PREFIX = "dovetail_"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's `/metrics`, with its display name."""

    name: str
    url: str


def parse_endpoint(text: str) -> Endpoint:
    """Parse `NAME=URL`; raises UsageError if it is invalid."""
    name, found, url = text.partition("=")
    if not (name and found) or not url.startswith(("http://", "https://")):
        raise UsageError(f"{text[:200]!r} is not NAME=URL with an http or https URL")
    return Endpoint(name, url)


async def ask(endpoints: tuple[Endpoint, ...]) -> list[dict[str, Any]]:
    """The figures of all endpoints, or the error, in order."""
    return list(await asyncio.gather(*map(_ask_one, endpoints[:MAX_ENDPOINTS])))


async def _ask_one(endpoint: Endpoint) -> dict[str, Any]:
    gauge: dict[str, Any] = {"name": endpoint.name, "url": endpoint.url, "error": "", "figures": []}
    try:
        data = await probe(endpoint.url, None, TIMEOUT_S, "text/plain")
        if data is None:
            raise ValueError(f"answered something else than at most {MAX_DOCUMENT_BYTES} bytes of metrics")
        gauge["figures"] = list(islice(_read_figures(data.decode()), MAX_FIGURES))
    except (ConnectFailed, ValueError) as error:
        gauge["error"] = getattr(error, "reason", "") or str(error)
    return gauge


def _read_figures(text: str) -> Iterator[dict[str, Any]]:
    """Gauges and counters of the servers; for histograms the count and the sum, which give the mean."""
    for family in text_string_to_metric_families(text):
        if not family.name.startswith(_PREFIX):
            continue
        for sample in family.samples:
            if sample.name.endswith(("_bucket", "_created")):
                continue
            yield {
                "name": sample.name.removeprefix(_PREFIX),
                "labels": ", ".join(f"{name}={value}" for name, value in sample.labels.items() if value),
                "value": sample.value,
                "help": family.documentation,
            }
