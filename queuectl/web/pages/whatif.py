"""The what-if page: a form that the page sends to ``POST /api/v1/plans``, because a plan can take seconds, and shows as tables."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.body import MAX_BYTES
from queuectl.domain.identity import Right
from queuectl.web.site import Site

EXAMPLE: Final = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: team-a
  labels:
    queuectl.dev/queue-name: default
spec:
  parallelism: 4
  completions: 4
  template:
    spec:
      containers: …"""


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def form(request: Request) -> Response:
        await site.guard.require(request, Right("create", "plans"))
        access = await site.access(request)
        return site.page(request, "whatif.html", access, most_bytes=MAX_BYTES, example=EXAMPLE)

    return [Route("/whatif", form)]
