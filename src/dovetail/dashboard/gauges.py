"""What the servers say of themselves: their Prometheus endpoints, asked in turn and read with a bound."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from dovetail.model.errors import UsageError

MAX_ENDPOINTS = 64
MAX_ANSWER_BYTES = 4 << 20
MAX_FIGURES = 400
TIMEOUT_S = 2.0
_PREFIX = "dovetail_"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's `/metrics`, under the name it is shown by."""

    name: str
    url: str


def parse_endpoint(text: str) -> Endpoint:
    """`NAME=URL`; UsageError where it is not that."""
    name, found, url = text.partition("=")
    if not (name and found) or not url.startswith(("http://", "https://")):
        raise UsageError(f"{text[:200]!r} is not NAME=URL with an http or https URL")
    return Endpoint(name, url)


def ask(endpoints: tuple[Endpoint, ...]) -> list[dict[str, Any]]:
    """The figures of all endpoints, or what went wrong, in their order."""
    if not endpoints:
        return []
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(_ask_one, endpoints[:MAX_ENDPOINTS]))


def _ask_one(endpoint: Endpoint) -> dict[str, Any]:
    told: dict[str, Any] = {"name": endpoint.name, "url": endpoint.url, "error": "", "figures": []}
    try:
        with urllib.request.urlopen(endpoint.url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - checked when parsed
            data = answer.read(MAX_ANSWER_BYTES + 1)
        if len(data) > MAX_ANSWER_BYTES:
            raise ValueError(f"answered more than {MAX_ANSWER_BYTES} bytes")
        told["figures"] = list(_read_figures(data.decode()))[:MAX_FIGURES]
    except urllib.error.URLError as error:
        told["error"] = str(error.reason)
    except (OSError, ValueError, http.client.HTTPException) as error:
        told["error"] = str(error) or type(error).__name__
    return told


def _read_figures(text: str) -> Iterator[dict[str, Any]]:
    """Gauges and counters of the servers; of histograms the count and the sum, which give the mean."""
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
