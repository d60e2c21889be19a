"""The server of the aggregated API: its port, its certificate, and the APIService by which kube-apiserver finds and trusts it."""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from queuectl.api.connections import ConnectionLimits
from queuectl.api.ports import Diagnoser
from queuectl.api.server import Certificate, WebServer
from queuectl.cluster.access import KubernetesAccess
from queuectl.cluster.client import METADATA_ONLY, Api, document_in
from queuectl.cluster.connection import Connection
from queuectl.control.certificate_keeper import CertificateKeeper, Publish
from queuectl.control.certificates import server_names
from queuectl.control.leader.schedule import supervised
from queuectl.control.listen_address import ListenAddress
from queuectl.db.ports import ApiStore
from queuectl.domain.containment import Containment
from queuectl.domain.errors import ObjectGone
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
        listen: address, as HOST:PORT.
        namespace: of the Secret.
        secret: in which the certificate is kept.
        hosts: names of the server, separated by commas, for the certificate.
        kubeconfig: None = the service account of the pod.
    """

    listen: str
    namespace: str
    secret: str
    hosts: str
    kubeconfig: Path | None


async def serve(
    settings: VisibilitySettings,
    store: ApiStore,
    diagnoser: Diagnoser | None,
    containment: Containment,
) -> None:
    """Serve the aggregated API until it is canceled. An error concerns only this task: the controller does not wait for it.

    Raises:
        BadInput: a setting or the kubeconfig is wrong, or the Secret does not exist.
        CannotListen: the address cannot be used.
    """
    async with AsyncExitStack() as stack:
        api = await Api.connect(Connection(kubeconfig=settings.kubeconfig))
        stack.push_async_callback(api.close)
        access = await KubernetesAccess.connect(settings.kubeconfig)
        stack.push_async_callback(access.close)
        prefix = "queuectl-visibility-"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        files = Certificate(folder / "tls.crt", folder / "tls.key")
        keeper = CertificateKeeper(
            api,
            settings.namespace,
            settings.secret,
            server_names(settings.hosts),
            files,
            in_api_service(api),
            containment,
            if_missing=IF_MISSING,
        )
        await keeper.start()
        proxy, rows = FrontProxy(api), LastKnown(store, time.monotonic)
        app = VisibilityApp(proxy, access, rows, diagnoser)
        server = WebServer(app, ListenAddress.parse(settings.listen), files, limits=LIMITS)
        _log.info("aggregated_api_served", url=server.url)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.run())
            group.create_task(keeper.run())
            # An error of one of them must not end the server: the API server would delete no namespace.
            for name, job in (
                ("workloads for kubectl", rows.run),
                ("authority of kube-apiserver", partial(_follow, proxy, server)),
            ):
                group.create_task(supervised(name, job, containment))


async def _follow(proxy: FrontProxy, server: WebServer) -> None:
    while True:
        await proxy.follow(server)
        await asyncio.sleep(FOLLOW_SECONDS)


def in_api_service(api: Api) -> Publish:
    """Publishes certificates in the APIService, which kube-apiserver reads.

    An administrator can delete the APIService at any time. No API server reads the certificates then.
    """

    async def publish(bundle: bytes) -> None:
        try:
            body = await api.request("GET", API_SERVICE)
        except ObjectGone as error:
            _log.warning("api_service_missing", error=str(error))
            return
        document = document_in(API_SERVICE, body, "metadata", "spec")
        encoded = base64.b64encode(bundle).decode()
        if document["spec"].get("caBundle") == encoded:
            return
        version = document["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "spec": {"caBundle": encoded}}
        await api.request(
            "PATCH", API_SERVICE, body=patch, content_type=MERGE_PATCH, accept=METADATA_ONLY
        )
        _log.info("ca_bundle_written", configuration=API_SERVICE)

    return publish
