"""The certificates that the API servers trust for the webhook: the caBundle of each webhook of its configuration."""

from __future__ import annotations

import base64
from typing import Final

import structlog

from queuectl.cluster.client import Api, document_in
from queuectl.cluster.writes import CONFIGURATION
from queuectl.control.certificate_keeper import Publish

_JSON_PATCH: Final = "application/json-patch+json"
_CONFIGURATION: Final = (
    f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{CONFIGURATION}"
)
_log = structlog.get_logger(source="queuectl.webhook")


def in_configuration(api: Api) -> Publish:
    """Publishes certificates in the configuration of the webhook."""

    async def publish(bundle: bytes) -> None:
        document = document_in(_CONFIGURATION, await api.request("GET", _CONFIGURATION), "metadata")
        encoded = base64.b64encode(bundle).decode()
        outdated = [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": encoded}
            for number, webhook in enumerate(document.get("webhooks") or ())
            if webhook["clientConfig"].get("caBundle") != encoded
        ]
        if outdated:
            version = document["metadata"]["resourceVersion"]
            unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
            await api.request(
                "PATCH", _CONFIGURATION, body=[unchanged, *outdated], content_type=_JSON_PATCH
            )
            _log.info("ca_bundle_written", configuration=CONFIGURATION)

    return publish
