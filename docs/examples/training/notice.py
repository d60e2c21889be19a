"""The notice that queuectl writes on a job before it evicts the job, and the answers of the job.

The environment variable JOB is the path of the job at the API server, for example /apis/batch/v1/namespaces/vision/jobs/pretrain.
The service account of the pod needs the verbs get and patch on the job. Without JOB, no notice is received.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PREFIX = "queuectl.dev/"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
POLL_SECONDS = 2.0


class Notice:
    """Reads the annotations of a job in a thread, and writes others.

    Attributes:
        requested: whether queuectl will evict the job.
    """

    def __init__(self, path: str | None) -> None:
        self.requested = False
        self._path = path
        if path:
            threading.Thread(target=self._poll, daemon=True).start()

    def saved(self, *, ready: bool) -> None:
        """Write the time of the checkpoint on the job, and whether the job is ready to be evicted."""
        if self._path:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            annotations = {f"{PREFIX}last-checkpoint-time": now}
            if ready:
                annotations[f"{PREFIX}preempt-ready"] = "true"
            self._try("PATCH", {"metadata": {"annotations": annotations}})

    def _poll(self) -> None:
        wait = threading.Event()
        while not self.requested:
            job = self._try("GET") or {"metadata": {}}
            found = job["metadata"].get("annotations", {})
            self.requested = f"{PREFIX}preempt-requested" in found
            wait.wait(POLL_SECONDS)

    def _try(self, method: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The job, after a change if there is a body. A training continues when the API server does not answer."""
        server = f"{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
        request = urllib.request.Request(
            f"https://{server}{self._path}",
            data=json.dumps(body).encode() if body else None,
            method=method,
            headers={
                "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
                "Content-Type": "application/merge-patch+json",
            },
        )
        trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        try:
            with urllib.request.urlopen(request, context=trusted, timeout=10) as answer:  # noqa: S310
                job: dict[str, Any] = json.load(answer)
                return job
        except OSError as error:
            print(f"the API server refused {method} {self._path}: {error}", flush=True)
            return None
