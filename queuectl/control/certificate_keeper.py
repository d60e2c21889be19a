"""Keeps the certificates that queuectl creates for a server: in one Secret that all replicas read, and where its clients read them.

Each replica does this. All writes are conditional on the resourceVersion, so two replicas never overwrite each other.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from queuectl.cluster.client import METADATA_ONLY, Api, document_in
from queuectl.cluster.connection import Connection
from queuectl.control.certificates import (
    CertificateFiles,
    Certificates,
    Pair,
    advance,
    readable,
    server_names,
)
from queuectl.control.leader.schedule import supervised
from queuectl.domain.containment import Containment
from queuectl.domain.errors import BadInput, ClusterError, ObjectGone
from queuectl.objects.kinds.described import MERGE_PATCH

EVERY_SECONDS: Final = 60.0
FIRST_SECONDS: Final = 1.0
"""Between two tries of a replica that has no certificate yet."""

TASK: Final = "certificates"
"""The name of the periodic task."""

AUTHORITY: Final = "ca.crt"
"""The key with the trusted certificates, in the Secret and in the ConfigMap for clients."""

_APPLY: Final = "apply the manifests again (docs/how-to/install.md#restore-changed-objects)"
_PARTS: Final = {"served": ("tls.crt", "tls.key"), "successor": ("next.crt", "next.key")}
_END: Final = b"-----END CERTIFICATE-----\n"
_log = structlog.get_logger(source="queuectl.certificates")

Publish = Callable[[bytes], Awaitable[None]]
"""Lets the clients trust these certificates, as PEM. It raises ClusterError."""


class CertificateKeeper:
    """The certificates of one replica of a server."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        secret: str,
        names: Sequence[str],
        files: CertificateFiles,
        publish: Publish,
        containment: Containment,
        *,
        if_missing: str,
    ) -> None:
        """Make one; no request is sent yet.

        Args:
            api: under the identity of the server.
            namespace: of the Secret.
            secret: its name.
            names: DNS names and IP addresses of the server.
            files: for the served certificate; only this process can read them.
            publish: lets clients trust certificates, before they are served.
            containment: of the process.
            if_missing: what an administrator does if an object does not exist.
        """
        self._api = api
        self._secret = f"/api/v1/namespaces/{namespace}/secrets/{secret}"
        self._names = names
        self._publish = publish
        self._containment = containment
        self._if_missing = if_missing
        self.files = files

    async def run(self) -> None:
        """Keep them until it is canceled. The served certificate stays in use after each error."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await supervised(TASK, self._checked, self._containment)

    async def start(self) -> None:
        """Return when there is a certificate to serve. Raises BadInput if it never can be."""
        missing: list[ObjectGone] = []

        async def first() -> None:
            try:
                await self._checked()
            except ObjectGone as error:
                missing.append(error)

        while not self._can_serve():
            await supervised(TASK, first, self._containment)
            if missing:
                raise BadInput(f"{self._if_missing}: {missing[0]}") from missing[0]
            if not self._can_serve():
                await asyncio.sleep(FIRST_SECONDS)

    def _can_serve(self) -> bool:
        """Whether the files hold a certificate and its key. A process that was killed can leave files that do not go together."""
        try:
            return Pair(self.files.chain.read_bytes(), self.files.key.read_bytes()).usable
        except OSError:
            return False

    async def _checked(self) -> None:
        """Take one step, and log requests that fail.

        Raises:
            ObjectGone: the Secret or the object for clients does not exist, and no certificate can be served yet.
        """
        try:
            await self.step(dt.datetime.now(dt.UTC))
        except ClusterError as error:
            if isinstance(error, ObjectGone) and not self._can_serve():
                raise
            _log.warning("own_certificate_not_checked", secret=self._secret, error=str(error))

    async def step(self, now: dt.datetime) -> None:
        """Renew what is due, let the clients trust it, and write the served pair to the files.

        Raises:
            ClusterError: a request failed, or another replica has written in the meantime and wins; the next step continues.
        """
        document = document_in(
            self._secret, await self._api.request("GET", self._secret), "metadata"
        )
        stored = from_data(document.get("data"))
        current = advance(stored, self._names, now)
        if current != stored:
            version = document["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "data": to_data(current)}
            await self._api.request(
                "PATCH", self._secret, body=body, content_type=MERGE_PATCH, accept=METADATA_ONLY
            )
            successor = current.successor is not None
            _log.info("own_certificate_renewed", secret=self._secret, successor=successor)
        await self._publish(b"".join(current.trusted))
        assert current.served is not None
        self._write(current.served)

    def _write(self, pair: Pair) -> None:
        if self._can_serve() and self.files.chain.read_bytes() == pair.certificate:
            return
        for path, content in (
            (self.files.key, pair.key),
            (self.files.chain, pair.certificate),
        ):
            draft = path.with_suffix(".new")
            draft.touch(mode=0o600)
            draft.write_bytes(content)
            draft.rename(path)


@asynccontextmanager
async def own_certificate(
    kubeconfig: Path | None,
    namespace: str,
    secret: str,
    authority: str,
    hosts: str,
    files: CertificateFiles,
    containment: Containment,
) -> AsyncIterator[CertificateKeeper]:
    """The keeper of the certificate of the REST API, when the files have one.

    Args:
        kubeconfig: None = the service account of the pod.
        namespace: of the Secret and of the ConfigMap.
        secret: name of the Secret.
        authority: name of the ConfigMap in which clients read what to trust.
        hosts: DNS names and IP addresses of the server, separated by commas.
        files: for the served certificate.
        containment: of the process.

    Raises:
        BadInput: a name or the kubeconfig is wrong, or the Secret or the ConfigMap does not exist.
    """
    if not authority:
        raise BadInput("QUEUECTL_TLS_SECRET needs QUEUECTL_TLS_AUTHORITY")
    try:
        names = server_names(hosts)
    except BadInput as error:
        raise BadInput(f"QUEUECTL_TLS_HOSTS: {error}") from None
    api = await Api.connect(Connection(kubeconfig=kubeconfig))
    try:
        keeper = CertificateKeeper(
            api,
            namespace,
            secret,
            names,
            files,
            in_config_map(api, namespace, authority),
            containment,
            if_missing=_APPLY,
        )
        await keeper.start()
        yield keeper
    finally:
        await api.close()


def in_config_map(api: Api, namespace: str, name: str) -> Publish:
    """Publishes certificates in a ConfigMap that exists, which the clients read."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"

    async def publish(bundle: bytes) -> None:
        document = document_in(path, await api.request("GET", path), "metadata")
        content, text = document.get("data"), bundle.decode()
        if isinstance(content, Mapping) and content.get(AUTHORITY) == text:
            return
        version = document["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "data": {AUTHORITY: text}}
        await api.request("PATCH", path, body=body, content_type=MERGE_PATCH, accept=METADATA_ONLY)
        _log.info("authority_published", config_map=path)

    return publish


def from_data(secret_data: object) -> Certificates:
    """The certificates in the data of the Secret. Content that is not usable counts as missing, so that it is replaced."""
    given = secret_data if isinstance(secret_data, Mapping) else {}
    values = {key: _decoded(text) for key, text in given.items() if isinstance(text, str)}
    pairs = {name: Pair(*(values.get(key, b"") for key in keys)) for name, keys in _PARTS.items()}
    trusted = (one + _END for one in values.get(AUTHORITY, b"").split(_END)[:-1])
    return Certificates(
        **{name: pair for name, pair in pairs.items() if pair.usable},
        trusted=tuple(one for one in trusted if readable(one)),
    )


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""


def to_data(certificates: Certificates) -> dict[str, Any]:
    """The data of the Secret, for a merge patch: None deletes a key."""
    values: dict[str, bytes | None] = {AUTHORITY: b"".join(certificates.trusted)}
    for name, (certificate, key) in _PARTS.items():
        pair: Pair | None = getattr(certificates, name)
        values[certificate] = pair.certificate if pair is not None else None
        values[key] = pair.key if pair is not None else None
    return {
        key: base64.b64encode(value).decode() if value is not None else None
        for key, value in values.items()
    }
