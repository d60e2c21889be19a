"""Whether a browser sends a request in the name of another site.

No answer ever grants another origin anything (CORS), so a foreign page can read nothing; but it could send simple POSTs to
a server that its visitor can reach, or whose cookie he has.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers

CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods of requests that may change something."""


def foreign(headers: Headers) -> bool:
    """Whether the browser says so. Programs that are no browsers say nothing."""
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and _host(origin) != headers.get("host", "").lower()


def declared(headers: Headers) -> bool:
    """Whether it says anything; every browser does, of a request that may change something."""
    return "origin" in headers or "sec-fetch-site" in headers


def _host(origin: str) -> str:
    """Host and port; what stands before them is TLS's affair, which may end at an ingress before us."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
