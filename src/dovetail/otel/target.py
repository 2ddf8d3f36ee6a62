"""The OTLP target: posts a request, and says whether a retry may help."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.model.errors import ConnectFailed, UsageError
from dovetail.otel.otlp import CONTENT_TYPE, PATH
from dovetail.runtime.http import is_url
from dovetail.runtime.tls import describe_connecting

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 65_536
_REFUSED = frozenset({400, 413, 422})
"""Status codes of requests that the target will never accept."""


class NotTaken(ConnectFailed):
    """A request that was not accepted. `is_refused`: it never will be. `after_s`: the pause the target asks for."""

    def __init__(self, url: str, reason: str, *, is_refused: bool = False, after_s: float | None = None) -> None:
        super().__init__(url, reason)
        self.retriable = not is_refused
        self.is_refused = is_refused
        self.after_s = after_s


def parse_endpoint(text: str) -> str:
    """The URL to post to; adds the OTLP path if there is none; UsageError if it is not a URL."""
    if not is_url(text, "http", "https"):
        raise UsageError(f"endpoint {text[:200]!r} is not an http or https URL")
    parts = urllib.parse.urlsplit(text)
    return text if parts.path.strip("/") else urllib.parse.urlunsplit(parts._replace(path=PATH))


def parse_headers(text: str) -> dict[str, str]:
    """Parse headers in the form of OTEL_EXPORTER_OTLP_HEADERS: `name=value,name=value`, values percent-encoded."""
    headers = {}
    for part in filter(None, text.split(",")):
        name, found, value = part.partition("=")
        if not (name.strip() and found):
            raise UsageError("headers are not of the form name=value,name=value")
        headers[name.strip()] = urllib.parse.unquote(value.strip())
    return headers


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treat a redirect as an error: headers may contain a token meant for nobody else."""

    def redirect_request(self, *_: object) -> None: ...


_OPENER = urllib.request.build_opener(_NoRedirect)


@dataclass(frozen=True, slots=True)
class Target:
    """Where spans go."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S

    def post(self, body: bytes) -> bytes:
        """Post a request and return the start of the answer; NotTaken if it was not accepted."""
        headers = {**self.headers, "Content-Type": CONTENT_TYPE}
        request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")  # noqa: S310 - checked
        deadline = time.monotonic() + self.timeout_s
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as answer:
                return _read(answer, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise NotTaken(
                    self.url,
                    f"answered {error.code}",
                    is_refused=error.code in _REFUSED,
                    after_s=_seconds(error.headers.get("Retry-After")),
                ) from None
        except urllib.error.URLError as error:
            raise NotTaken(self.url, f"cannot be reached: {_cause(self.url, error)}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotTaken(self.url, f"failed: {str(error) or type(error).__name__}") from None


def _cause(url: str, error: urllib.error.URLError) -> str:
    return (
        describe_connecting(error.reason, is_tls=url.startswith("https:"))
        if isinstance(error.reason, OSError)
        else str(error.reason)
    )


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read the start of an answer; does not wait for a target that sends byte by byte."""
    data = bytearray()
    while len(data) < MAX_ANSWER_BYTES and (chunk := answer.read1(MAX_ANSWER_BYTES - len(data))):
        data += chunk
        if time.monotonic() > deadline:
            raise TimeoutError("the answer takes too long")
    return bytes(data)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None
