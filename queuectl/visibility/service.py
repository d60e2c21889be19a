"""The server of the aggregated API: its port, its certificate, and the APIService by which kube-apiserver finds and trusts it."""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from queuectl.api.certificate_keeper import CertificateKeeper, Publish
from queuectl.api.connections import ConnectionLimits
from queuectl.api.ports import Diagnoser
from queuectl.api.server import Certificate, ListenAddress, WebServer
from queuectl.cluster.access import KubernetesAccess
from queuectl.cluster.client import METADATA_ONLY, Api, document_in
from queuectl.cluster.connection import Connection
from queuectl.db.ports import ApiStore
from queuectl.domain.containment import Containment
from queuectl.objects.kinds.described import MERGE_PATCH
from queuectl.visibility.app import VisibilityApp
from queuectl.visibility.identity import FrontProxy
from queuectl.visibility.objects import GROUP, VERSION
from queuectl.visibility.rows import LastKnown

API_SERVICE: Final = f"/apis/apiregistration.k8s.io/v1/apiservices/{VERSION}.{GROUP}"
IF_MISSING: Final = "set the value visibility.enabled of the chart"
FOLLOW_SECONDS: Final = 10.0
"""Between two reads of the authority of kube-apiserver's certificate."""
LIMITS: Final = ConnectionLimits(most=500, of_address=None, head_bytes=256 << 10)
"""The clients are a few API servers, each with many connections."""
_log = structlog.get_logger(source="queuectl.visibility")


@dataclass(frozen=True)
class VisibilitySettings:
    """Where the API is served.

    Attributes:
        listen: address.
        namespace: of the Secret.
        secret: in which the certificate is kept.
        hosts: names of the server, for the certificate.
        kubeconfig: None = the service account of the pod.
    """

    listen: ListenAddress
    namespace: str
    secret: str
    hosts: Sequence[str]
    kubeconfig: Path | None


class VisibilityService:
    """One replica of the aggregated API. ``url``: where it listens."""

    def __init__(
        self, server: WebServer, keeper: CertificateKeeper, proxy: FrontProxy, rows: LastKnown
    ) -> None:
        self._server = server
        self._keeper = keeper
        self._proxy = proxy
        self._rows = rows
        self.url = server.url

    async def run(self) -> None:
        """Serve until it is canceled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._server.run())
            group.create_task(self._keeper.run())
            group.create_task(self._rows.run())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            await self._proxy.follow(self._server)
            await asyncio.sleep(FOLLOW_SECONDS)


@asynccontextmanager
async def visibility(
    settings: VisibilitySettings,
    store: ApiStore,
    diagnoser: Diagnoser | None,
    containment: Containment,
) -> AsyncIterator[VisibilityService]:
    """The aggregated API, when it has a certificate.

    Raises:
        BadInput: a setting or the kubeconfig is wrong, or the Secret or the APIService does not exist.
        CannotListen: the address cannot be used.
    """
    async with AsyncExitStack() as stack:
        api = await Api.connect(Connection(kubeconfig=settings.kubeconfig))
        stack.push_async_callback(api.close)
        access = await KubernetesAccess.connect(settings.kubeconfig)
        stack.push_async_callback(access.close)
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="queuectl-visibility-"))
        )
        files = Certificate(folder / "tls.crt", folder / "tls.key")
        keeper = CertificateKeeper(
            api,
            settings.namespace,
            settings.secret,
            settings.hosts,
            files,
            in_api_service(api),
            containment,
            if_missing=IF_MISSING,
        )
        await keeper.start()
        proxy, rows = FrontProxy(api), LastKnown(store, time.monotonic)
        app = VisibilityApp(proxy, access, rows, diagnoser)
        server = WebServer(app, settings.listen, files, limits=LIMITS)
        yield VisibilityService(server, keeper, proxy, rows)


def in_api_service(api: Api) -> Publish:
    """Publishes certificates in the APIService, which kube-apiserver reads."""

    async def publish(bundle: bytes) -> None:
        document = document_in(
            API_SERVICE, await api.request("GET", API_SERVICE), "metadata", "spec"
        )
        encoded = base64.b64encode(bundle).decode()
        if document["spec"].get("caBundle") == encoded:
            return
        version = document["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"caBundle": encoded}}
        await api.request(
            "PATCH", API_SERVICE, body=body, content_type=MERGE_PATCH, accept=METADATA_ONLY
        )
        _log.info("ca_bundle_written", configuration=API_SERVICE)

    return publish
