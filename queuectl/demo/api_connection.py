"""A client of queuectl's REST API for the demo: configuration, workloads and explanations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Self

import httpx2

from queuectl.domain.errors import QueuectlError
from queuectl.localcluster.client import NO_TRUSTED_CA
from queuectl.objects.configuration.config_kinds import BY_KIND, PREFIX

Json = dict[str, Any]
_PAGE: Final = 500


class ApiRefused(QueuectlError):
    """The API refused a request. The message is the API's."""


class ApiConnection:
    """A connection to one queuectl. Methods raise ApiRefused."""

    def __init__(self, url: str, **connection: Any) -> None:
        """``connection``: further arguments of the HTTP client, for example ``headers``."""
        options: dict[str, Any] = {
            "verify": NO_TRUSTED_CA,
            "timeout": 10.0,
            "trust_env": False,
        } | connection
        self._http = httpx2.Client(base_url=url, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def apply(self, documents: Iterable[Json]) -> None:
        """Create or replace configuration."""
        for document in documents:
            metadata = document["metadata"]
            path = BY_KIND[document["kind"]].path(metadata.get("namespace", ""), metadata["name"])
            self._ask("PUT", path, json=document)

    def workloads(self, namespace: str | None = None) -> dict[str, Json]:
        """The newest workload of each ``namespace/name``, of one or of all namespaces: a name can be used again."""
        found: list[Json] = []
        query: dict[str, object] = {"limit": _PAGE, "sort": "name"}
        if namespace is not None:
            query["namespace"] = namespace
        while True:
            page = self._ask("GET", f"{PREFIX}/workloads", params=query)
            found += page["items"]
            if page["nextCursor"] is None:
                found.sort(key=lambda one: str(one["queuedAt"]))
                return {f"{one['namespace']}/{one['name']}": one for one in found}
            query["cursor"] = page["nextCursor"]

    def workload(self, namespace: str, name: str) -> Json:
        """One workload with its current reason."""
        return self._ask("GET", f"/api/v1/namespaces/{namespace}/workloads/{name}")

    def explain(self, namespace: str, name: str) -> Json:
        """The explanation of a workload."""
        return self._ask("GET", f"{PREFIX}/namespaces/{namespace}/workloads/{name}/explain")

    def history(self, namespace: str, name: str) -> list[Json]:
        """The history of a workload: the first page, which has all events of a short run."""
        path = f"{PREFIX}/namespaces/{namespace}/workloads/{name}/history"
        found: list[Json] = self._ask("GET", path, params={"limit": _PAGE})["items"]
        return found

    def _ask(self, method: str, path: str, **extra: Any) -> Json:
        try:
            answer = self._http.request(method, path, **extra)
            body: Json = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise ApiRefused(f"{method} {path}: {type(error).__name__}: {error}") from error
        if answer.is_error:
            raise ApiRefused(f"{method} {path}: {body.get('detail') or body}")
        return body
