"""Every route, for every role of deploy/, in the caller's namespace and another one, by RBAC of a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest
import yaml
from starlette.routing import Route

from queuectl.cluster.access import KubernetesAccess
from queuectl.cluster.apply import apply
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.domain.commands import Action, Command
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS
from tests.api.conftest import commit
from tests.api.signed import asking, signed_app
from tests.api.support import CLUSTER_QUEUE, DOCUMENTS, LIVES, LOCAL_QUEUE, job, live_through
from tests.doubles.store import MemoryStore
from tests.support.controlplane import ControlPlane, control_plane
from tests.support.people import Document, account, binding, namespace, token_of

__all__ = ["control_plane"]
pytestmark = pytest.mark.system

OWN, OTHER = "rights-own", "rights-other"
NONE = "none"
ADMIN, EDIT, VIEW = "admin", "edit", "view"
"""Kubernetes' own. Of these ``view`` includes our viewer, ``edit`` and ``admin`` our submitter."""
ROLES = {  # where the role counts: in OWN, or everywhere
    NONE: None,
    "queuectl-submitter": OWN,
    "queuectl-team-admin": OWN,
    "queuectl-admission-check": OWN,
    "queuectl-viewer": "",
    "queuectl-platform-admin": "",
    ADMIN: OWN,
    EDIT: OWN,
    VIEW: OWN,
}
SEES = frozenset({"queuectl-viewer", "queuectl-platform-admin"})
"""The roles that can read objects without a namespace."""
RULES = frozenset({"queuectl-platform-admin"})
CHECKER = "queuectl-admission-check"
SEES_OWN = frozenset(ROLES) - {NONE}
RUNS_OWN = frozenset({"queuectl-submitter", "queuectl-team-admin", ADMIN, EDIT}) | RULES
LEADS_OWN = frozenset({"queuectl-team-admin"}) | RULES
ANONYMOUS = frozenset(ROLES)

FILTERED = frozenset(
    {
        "/api/v1/workloads",
        "/api/v1/localqueues",
        "/api/v1/pastuse",
        "/api/v1/commands",
        "/api/v1/search",
        "/api/v1/receivers",
    }
)
"""Lists over all namespaces: each caller gets the objects that the caller can read."""
STREAM = "/api/v1/events"
"""The steps that the caller can watch, for callers that can watch workloads somewhere."""
USE = "/api/v1/queueuse"
"""The ClusterQueues that the caller uses, for callers that can list workloads somewhere."""
OF_ALL = frozenset(
    {
        "/api/v1/reports/efficiency",
        "/api/v1/reports/jobs",
        "/api/v1/reports/shadow",
        "/api/v1/reports/shadow/page",
    }
)
"""Reports that have no part for one namespace."""
HIDDEN = ("{uid}", "/commands/{number}")
"""Paths without a namespace: for callers without the right, the object does not exist."""
FOR_LEADERS = frozenset({"priority", "preempt"})
FOR_RULERS = frozenset(
    {
        "/api/v1/audit",
        "/api/v1/invariants",
        "/api/v1/receivers/{name}/test",
        "/api/v1/refusedplans",
        "/api/v1/refusedplans/{number}",
        "/api/v1/setasideobjects",
        "/api/v1/setasideobjects/{number}",
    }
)
FOR_KNOWN = frozenset({"/healthz", "/readyz", "/api/v1/openapi.json", "/api/v1/session"})
SUBSCRIPTIONS = "/api/v1/subscriptions"
"""Each caller reads its own; roles that run jobs somewhere create some."""


def allowed(method: str, path: str, where: str) -> frozenset[str]:
    """The roles that are allowed to, for an object in ``where``. docs/how-to/access.md describes this table."""
    if path in OF_ALL:
        return SEES
    if path in (STREAM, USE):
        return ANONYMOUS - {NONE}
    if path in FOR_KNOWN or path in FILTERED or path.startswith("/api/v1/reports/"):
        return ANONYMOUS
    action = path.rpartition("/")[2]
    if path in FOR_RULERS or action in ("topups", "confirm"):
        return RULES
    if path == SUBSCRIPTIONS:
        return RUNS_OWN if method == "POST" else ANONYMOUS
    if action == Action.CHECK:
        return RULES | {CHECKER} if where == OWN else RULES
    if action in set(Action):
        # The workloads of a batch are in its body.
        if where == OTHER and not path.startswith("/api/v1/commands/"):
            return RULES
        return LEADS_OWN if action in FOR_LEADERS else RUNS_OWN
    if action in ("stop", "resume"):
        return LEADS_OWN if "/localqueues/" in path and where == OWN else RULES
    if method == "POST":
        return RULES if path == "/api/v1/dryrun" else SEES  # plans
    if method in ("PUT", "PATCH", "DELETE"):
        return LEADS_OWN if "/localqueues" in path and where == OWN else RULES
    in_namespace = any(part in path for part in ("{namespace}", *HIDDEN))
    return SEES_OWN if in_namespace and where == OWN else SEES


@dataclass(frozen=True)
class Person:
    role: str
    token: str


@pytest.fixture(scope="module")
def people(control_plane: ControlPlane) -> list[Person]:
    """One ServiceAccount with each role."""

    async def make() -> list[Person]:
        documents: list[Document] = [namespace(OWN), namespace(OTHER)]
        for role, where in ROLES.items():
            one = account(OTHER, role)
            documents.append(one)
            if where is not None:
                documents.append(binding(f"rights-{role}", role, one, where))
        api = await Api.connect(Connection(kubeconfig=control_plane.cluster.kubeconfig))
        await apply(api, documents)
        await api.close()
        return [Person(role, await token_of(control_plane, account(OTHER, role))) for role in ROLES]

    return asyncio.run(make())


def operations() -> Iterator[tuple[str, str]]:
    app = signed_app(MemoryStore(), None)  # type: ignore[arg-type]  # it has no callers
    for route in app.routes:
        assert isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}:
            if route.path != "/api/v1/session" and (method, route.path) != ("GET", "/metrics"):
                yield method, route.path


def filled(path: str, where: str) -> str:
    """The path of something that exists there."""
    name = "default" if "/localqueues/" in path else "running"
    single = {k.plural: k.single for k in CONFIG_KINDS}
    if any(f"/{plural}/" in path and one for plural, one in single.items()):
        name = "default"
    number = 1 + [OWN, OTHER].index(where)
    values = {"namespace": where, "name": name, "uid": f"uid-{where}", "number": number}
    return path.format_map(values)


async def store_with_work() -> MemoryStore:
    store = MemoryStore()
    for document in DOCUMENTS.values():
        await store.put_config(document)
    for where in (OWN, OTHER):
        queue = {**LOCAL_QUEUE, "metadata": {"name": "default", "namespace": where}}
        await store.put_config(queue)
        record = replace(job("running", namespace=where), uid=f"uid-{where}")
        await commit(store, live_through(record, *LIVES["running"]))
        await store.add_command(Command(0, record.uid, Action.HOLD, "alice", where, 1.0))
    return store


@pytest.fixture
async def access(control_plane: ControlPlane) -> AsyncIterator[KubernetesAccess]:
    made = await KubernetesAccess.connect(control_plane.kubeconfig)
    yield made
    await made.close()


@pytest.mark.parametrize("where", [OWN, OTHER], ids=["own", "other"])
async def test_the_matrix(people: list[Person], access: KubernetesAccess, where: str) -> None:
    app = signed_app(await store_with_work(), access, per_second=1e6, burst=10**6)
    wrong: list[str] = []
    for person in people:
        async with asking(app, person.token) as client:
            for method, path in sorted(operations()):
                answer = await send_request(client, method, path, where)
                may = person.role in allowed(method, path, where)
                hidden = answer.status_code == 404 and any(part in path for part in HIDDEN)
                refused = answer.status_code == 403 or hidden
                if refused is may or answer.status_code in (401, 500):
                    wrong.append(f"{person.role}: {method} {path}: {answer.status_code}")
    assert not wrong


async def send_request(
    client: httpx2.AsyncClient, method: str, path: str, where: str
) -> httpx2.Response:
    """A request that changes nothing where it is allowed: its document is wrong, or its version."""
    query = {"follow": "false", "after": "0"} if path.endswith("/events") else {}
    headers = {"If-Match": '"999999"'} if method == "DELETE" else {}
    body = {"items": [{"kind": "Cohort"}]} if path == "/api/v1/dryrun" else {"not": "known"}
    return await client.request(
        method, filled(path, where), params=query, headers=headers, json=body
    )


async def test_the_role_of_the_page_for_team_leads_permits_stopping_one_queue(
    control_plane: ControlPlane, access: KubernetesAccess
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "team.md").read_text()
    role = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    lead = account(OTHER, "queue-lead")
    api = await Api.connect(Connection(kubeconfig=control_plane.cluster.kubeconfig))
    await apply(api, [namespace(OTHER), lead, role, binding("queue-lead", role["metadata"]["name"], lead, "")])  # fmt: skip
    await api.close()
    store = MemoryStore()
    for name in ("team-a", "team-b"):
        await store.put_config({**CLUSTER_QUEUE, "metadata": {"name": name}})
    async with asking(signed_app(store, access), await token_of(control_plane, lead)) as client:
        path = "/api/v1/clusterqueues"
        answers = [
            (await client.post(f"{path}/team-b/stop", json={"drain": True})).status_code,
            (await client.post(f"{path}/team-b/resume")).status_code,
            (await client.post(f"{path}/team-a/stop")).status_code,
            (await client.put(f"{path}/team-b", json=CLUSTER_QUEUE)).status_code,
        ]
    assert answers == [200, 200, 403, 403]


async def test_lists_have_only_the_objects_that_the_caller_can_read(
    people: list[Person], access: KubernetesAccess
) -> None:
    app = signed_app(await store_with_work(), access)
    for person in people:
        async with asking(app, person.token) as client:
            for path in ("workloads", "localqueues"):
                items = (await client.get(f"/api/v1/{path}")).json()["items"]
                seen = {
                    i["metadata"]["namespace"] if "metadata" in i else i["namespace"] for i in items
                }
                mine = {OWN} if person.role in SEES_OWN else set()
                expected = {OWN, OTHER} if person.role in SEES else mine
                assert expected == seen - {"team-a"}, (person.role, path)
