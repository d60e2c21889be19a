"""Keeps the certificates of the webhook: in one Secret that all replicas read, and in the caBundle of the configuration.

Each replica does this. All writes are conditional on the resourceVersion, so two replicas never overwrite each other.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from queuectl.cluster.client import METADATA_ONLY, Api, document_in
from queuectl.cluster.writes import CONFIGURATION, NAME
from queuectl.control.leader.schedule import supervised
from queuectl.domain.containment import Containment
from queuectl.domain.errors import BadInput, ClusterError, ObjectGone
from queuectl.objects.kinds.described import MERGE_PATCH
from queuectl.webhook.certificates import Certificates, Pair, advance, readable

EVERY_SECONDS: Final = 60.0
FIRST_SECONDS: Final = 1.0
"""Between two tries of a replica that has no certificate yet."""

TASK: Final = "webhook certificates"
"""The name of the periodic task."""

_JSON_PATCH: Final = "application/json-patch+json"
_CONFIGURATION: Final = (
    f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{CONFIGURATION}"
)
_PARTS: Final = {"served": ("tls.crt", "tls.key"), "successor": ("next.crt", "next.key")}
_TRUSTED: Final = "ca.crt"
_END: Final = b"-----END CERTIFICATE-----\n"
_log = structlog.get_logger(source="queuectl.webhook")


class CertificateKeeper:
    """The certificates of one replica."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        names: Sequence[str],
        folder: Path,
        containment: Containment,
    ) -> None:
        """Make one; no request is sent yet.

        Args:
            api: under the identity of the webhook.
            namespace: of the Secret.
            names: DNS names and IP addresses of the server.
            folder: for the files of the served certificate; only this process can read it.
            containment: of the process.
        """
        self._api = api
        self._secret = f"/api/v1/namespaces/{namespace}/secrets/{NAME}"
        self._names = names
        self._containment = containment
        self.chain, self.key = folder / "tls.crt", folder / "tls.key"

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

        while not self.chain.exists():
            await supervised(TASK, first, self._containment)
            if missing:
                raise BadInput(
                    "set the value mutation of the chart to webhook, or apply deploy/older-servers: "
                    f"{missing[0]}"
                ) from missing[0]
            if not self.chain.exists():
                await asyncio.sleep(FIRST_SECONDS)

    async def _checked(self) -> None:
        """Take one step, and log requests that fail.

        Raises:
            ObjectGone: the configuration or the Secret does not exist, and no certificate can be served yet.
        """
        try:
            await self.step(dt.datetime.now(dt.UTC))
        except ClusterError as error:
            if isinstance(error, ObjectGone) and not self.chain.exists():
                raise
            _log.warning("webhook_certificate_not_checked", error=str(error))

    async def step(self, now: dt.datetime) -> None:
        """Renew what is due, let the API servers trust it, and write the served pair to the files.

        Raises:
            ClusterError: a request failed, or another replica has written meanwhile and wins; the next step continues.
        """
        document = document_in(
            self._secret, await self._api.request("GET", self._secret), "metadata"
        )
        found = from_data(document.get("data"))
        kept = advance(found, self._names, now)
        if kept != found:
            version = document["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "data": to_data(kept)}
            await self._api.request(
                "PATCH", self._secret, body=body, content_type=MERGE_PATCH, accept=METADATA_ONLY
            )
            _log.info("webhook_certificate_renewed", successor=kept.successor is not None)
        await self._trust(b"".join(kept.trusted))
        assert kept.served is not None
        self._write(kept.served)

    async def _trust(self, bundle: bytes) -> None:
        document = document_in(
            _CONFIGURATION, await self._api.request("GET", _CONFIGURATION), "metadata"
        )
        encoded = base64.b64encode(bundle).decode()
        outdated = [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": encoded}
            for number, webhook in enumerate(document.get("webhooks") or ())
            if webhook["clientConfig"].get("caBundle") != encoded
        ]
        if outdated:
            version = document["metadata"]["resourceVersion"]
            unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
            await self._api.request(
                "PATCH", _CONFIGURATION, body=[unchanged, *outdated], content_type=_JSON_PATCH
            )
            _log.info("ca_bundle_written", configuration=CONFIGURATION)

    def _write(self, pair: Pair) -> None:
        if self.chain.exists() and self.chain.read_bytes() == pair.certificate:
            return
        for path, content in ((self.key, pair.key), (self.chain, pair.certificate)):
            draft = path.with_suffix(".new")
            draft.touch(mode=0o600)
            draft.write_bytes(content)
            draft.rename(path)


def from_data(secret_data: object) -> Certificates:
    """The certificates in the data of the Secret. Content that is not usable counts as missing, so that it is replaced."""
    given = secret_data if isinstance(secret_data, Mapping) else {}
    values = {key: _decoded(text) for key, text in given.items() if isinstance(text, str)}
    pairs = {name: Pair(*(values.get(key, b"") for key in keys)) for name, keys in _PARTS.items()}
    trusted = (one + _END for one in values.get(_TRUSTED, b"").split(_END)[:-1])
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
    values: dict[str, bytes | None] = {_TRUSTED: b"".join(certificates.trusted)}
    for name, (certificate, key) in _PARTS.items():
        pair: Pair | None = getattr(certificates, name)
        values[certificate] = pair.certificate if pair is not None else None
        values[key] = pair.key if pair is not None else None
    return {
        key: base64.b64encode(value).decode() if value is not None else None
        for key, value in values.items()
    }
