"""The bundled PostgreSQL server of the chart: one server without a replica and without a backup, to evaluate queuectl.

The pod creates the roles of queuectl and their passwords at its first start, and writes the URLs to a Secret that the chart creates empty. The
Secret is the source of the passwords from then on. The pods of queuectl wait until the Secret has the URLs.

The pod also creates its certificate, keeps it in a Secret, and publishes the authority in a ConfigMap, which the pods of queuectl mount. Its
programs have no TLS, so the process itself serves it, and PostgreSQL listens on loopback alone.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog

from queuectl.cluster.client import METADATA_ONLY, Api, document_in
from queuectl.cluster.connection import Connection
from queuectl.control.certificate_keeper import CertificateKeeper, in_config_map
from queuectl.control.certificates import CertificateFiles
from queuectl.control.tls_front import LOOPBACK, TlsFront
from queuectl.db import migrate
from queuectl.db.embedded import DATABASE, PORT, USER, EmbeddedServer
from queuectl.domain.containment import Containment
from queuectl.domain.errors import ClusterError, ObjectGone, StoreError
from queuectl.objects.kinds.described import MERGE_PATCH

OWNER: Final = "queuectl_owner"
"""The role of migrations. It owns the database and is not a superuser."""
ROLES: Final = {"migration-url": OWNER, "url": "queuectl_leader", "api-url": "queuectl_api"}
"""The keys of the Secret, as those of your own database, and the roles of their URLs, of which two own nothing."""
CHECK_SECONDS: Final = 60.0
"""Between two checks of the Secret."""
_RETRY_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.5
_PASSWORD: Final = re.compile(r"[A-Za-z0-9_-]{40,100}")
_RULES: Final = (
    f"local all {USER},{OWNER} trust\n"
    f"host {DATABASE} {','.join(ROLES.values())} 127.0.0.0/8 scram-sha-256\n"
)
"""pg_hba.conf: the socket is in a private directory. The superuser cannot log in through the network."""
TLS_PORT: Final = 5433
"""Of the pod. The Service has the usual port of PostgreSQL, which the server itself has on loopback."""
_IF_MISSING: Final = "apply the manifests again (docs/how-to/install.md#restore-changed-objects)"
_log = structlog.get_logger(source="queuectl.database")


@dataclass(frozen=True)
class BundledSettings:
    """How the server runs.

    Attributes:
        directory: of the data and the socket.
        host: name by which the pods of queuectl reach the server.
        namespace: of the Secret.
        secret: its name, to which the URLs are written.
        certificate: name of the Secret with the certificate.
        authority: name of the ConfigMap in which clients read what to trust.
        listen: address for clients; None = all addresses.
        port: for clients.
        backend: address for the connections from this process to the server.
        kubeconfig: None = the service account of the pod.
    """

    directory: Path
    host: str
    namespace: str
    secret: str
    certificate: str
    authority: str
    listen: str | None = None
    port: int = TLS_PORT
    backend: str = LOOPBACK
    kubeconfig: Path | None = None

    def url(self, role: str, password: str) -> str:
        """The URL of the database for a role."""
        return f"postgresql://{role}:{password}@{self.host}:{PORT}/{DATABASE}"


async def serve(
    settings: BundledSettings, stop: asyncio.Event, ready: Callable[[], None] = lambda: None
) -> None:
    """Run the server until ``stop`` is set. ``ready`` is called when the Secret has the URLs.

    Raises:
        BadInput: the directory, the programs or the credentials cannot be used.
        StoreError: the server does not start, or has ended.
    """
    api = await Api.connect(Connection(kubeconfig=settings.kubeconfig))
    try:
        keeper = _keeper(api, settings)
        await keeper.start()
        front = TlsFront(keeper.files, (settings.backend, PORT))
        async with _server(settings) as server, front.listening(settings.listen, settings.port):
            while not stop.is_set():
                wait = CHECK_SECONDS
                try:
                    await keeper.step(dt.datetime.now(dt.UTC))
                    front.renew()
                    await publish(api, settings, server)
                    ready()
                except (ClusterError, StoreError) as error:
                    _log.warning("database_secret_not_written", error=str(error))
                    wait = _RETRY_SECONDS
                await _while_it_runs(server, stop, wait)
    finally:
        await api.close()


def _keeper(api: Api, settings: BundledSettings) -> CertificateKeeper:
    """The certificate of the server. Its files are on the volume, so a restart needs no answer of the API server."""
    folder = settings.directory / "tls"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return CertificateKeeper(
        api,
        settings.namespace,
        settings.certificate,
        [settings.host],
        CertificateFiles(folder / "tls.crt", folder / "tls.key"),
        in_config_map(api, settings.namespace, settings.authority),
        Containment(time.time),
        if_missing=_IF_MISSING,
    )


@asynccontextmanager
async def _server(settings: BundledSettings) -> AsyncIterator[EmbeddedServer]:
    """The running server. Each transaction is on the disk before its answer (fsync)."""
    rules = settings.directory / "pg_hba.conf"
    rules.write_text(_RULES)
    rules.chmod(0o644)  # the server can run as another account
    server = EmbeddedServer(
        settings.directory,
        settings={
            "listen_addresses": settings.backend,
            "hba_file": str(rules),
            "password_encryption": "scram-sha-256",
        },
    )
    for private in (server.data_directory, server.sockets):
        if private.exists():
            private.chmod(0o700)  # a mount of the volume can have given its group access
    async with server:
        yield server


async def _while_it_runs(server: EmbeddedServer, stop: asyncio.Event, seconds: float) -> None:
    """Wait, and return early at ``stop``.

    Raises:
        StoreError: the server has ended.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while not stop.is_set() and asyncio.get_running_loop().time() < deadline:
        if server.pid is None:
            raise StoreError(f"PostgreSQL has ended: its log is {server.directory / 'log'}")
        await asyncio.sleep(_POLL_SECONDS)


async def publish(api: Api, settings: BundledSettings, server: EmbeddedServer) -> None:
    """Set the passwords of the roles, and write the URLs to the Secret if it does not have them.

    Raises:
        ClusterError: the Secret cannot be read or written; the next call continues.
    """
    path = f"/api/v1/namespaces/{settings.namespace}/secrets/{settings.secret}"
    document = document_in(path, await api.request("GET", path), "metadata")
    stored = document.get("data")
    passwords = {
        role: _password(stored, key) or secrets.token_urlsafe(36) for key, role in ROLES.items()
    }
    await server.set_roles(OWNER, passwords)
    urls = {
        key: base64.b64encode(settings.url(role, passwords[role]).encode()).decode()
        for key, role in ROLES.items()
    }
    if isinstance(stored, Mapping) and urls.items() <= stored.items():
        return
    version = document["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "data": urls}
    await api.request("PATCH", path, body=body, content_type=MERGE_PATCH, accept=METADATA_ONLY)
    _log.info("database_secret_written", secret=settings.secret)


def _password(stored: object, key: str) -> str | None:
    """The password in a URL of the Secret; None if it has another form."""
    text = stored.get(key) if isinstance(stored, Mapping) else None
    try:
        found = urlsplit(base64.b64decode(text).decode()).password if text else None
    except (ValueError, TypeError):
        return None
    return found if found and _PASSWORD.fullmatch(found) else None


async def refuse_unmoved(url: str, namespace: str, claim: str, kubeconfig: Path | None) -> None:
    """Refuse a database that no leader has used while the volume of the bundled one exists: its data would seem lost.

    Args:
        url: of the database.
        namespace: of the claim.
        claim: the PersistentVolumeClaim of the bundled database.
        kubeconfig: None = the service account of the pod.

    Raises:
        StoreError: as described; the message names both ways on.
        ClusterError: the API server does not answer whether the claim exists.
    """
    if await migrate.was_used(url):
        return
    api = await Api.connect(Connection(kubeconfig=kubeconfig))
    try:
        await api.request("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
    except ObjectGone:
        return
    finally:
        await api.close()
    raise StoreError(
        f"the bundled database of queuectl has data in the claim {claim}, and this database is empty: copy the data with "
        "`queuectl db move`, or set the value database.startEmpty (docs/how-to/move-the-database.md)"
    )
