"""The objects of a certificate that queuectl keeps: its Secret, and where clients read what they trust."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec

from queuectl.cluster.client import Api, Method
from queuectl.control.certificate_keeper import AUTHORITY
from queuectl.domain.errors import WriteConflict


class CertificateObjects(Api):
    """A double of the API server with a Secret, a ConfigMap, and the configuration of the webhook.

    Attributes:
        answers: what the next requests get instead, or raise.
        conflicts: the number of writes that another client forestalls.
    """

    def __init__(self, data: object = None) -> None:
        metadata = {"resourceVersion": "1"}
        self.secret: dict[str, Any] = {"metadata": metadata, "data": data}
        self.config_map: dict[str, Any] = {"metadata": metadata}
        self.configuration: dict[str, Any] = {
            "metadata": metadata,
            "webhooks": [{"name": "jobs", "clientConfig": {}}],
        }
        self.answers: list[bytes | Exception] = []
        self.conflicts = 0

    async def request(self, method: Method, path: str, **more: Any) -> bytes:
        await asyncio.sleep(0)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if method == "PATCH" and self.conflicts:
            self.conflicts -= 1
            raise WriteConflict("the object has been modified")
        stored = self._stored(path)
        if method == "PATCH" and stored is self.configuration:
            for change in more["body"][1:]:
                stored["webhooks"][0]["clientConfig"]["caBundle"] = change["value"]
        elif method == "PATCH":
            data = stored.get("data")
            stored["data"] = {**(data if isinstance(data, dict) else {}), **more["body"]["data"]}
        return msgspec.json.encode(stored)

    def _stored(self, path: str) -> dict[str, Any]:
        if "/secrets/" in path:
            return self.secret
        return self.config_map if "/configmaps/" in path else self.configuration

    async def close(self) -> None:
        """Do nothing: this double has no connection."""

    @property
    def trusted_by_api_servers(self) -> bytes:
        """The certificates in the configuration of the webhook."""
        return base64.b64decode(self.configuration["webhooks"][0]["clientConfig"]["caBundle"])

    @property
    def trusted_by_clients(self) -> bytes:
        """The certificates in the ConfigMap."""
        return str(self.config_map["data"][AUTHORITY]).encode()
