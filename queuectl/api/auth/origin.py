"""Whether a page of another site sent a request.

No answer grants another origin access (CORS), so such a page cannot read an answer. It could send simple POSTs to a server
that the user's browser can reach, with the user's cookie.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers

CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods of requests that can change something."""


def foreign(headers: Headers) -> bool:
    """Whether the browser states another origin. Other programs state none."""
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and _host(origin) != headers.get("host", "").lower()


def declared(headers: Headers) -> bool:
    """Whether the request states an origin. Every browser does so for a request that can change something."""
    return "origin" in headers or "sec-fetch-site" in headers


def _host(origin: str) -> str:
    """Host and port. The scheme is not compared, because an ingress can terminate TLS."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
