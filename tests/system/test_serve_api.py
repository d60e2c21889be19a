"""`queuectl serve` as deploy/ runs it: with TLS, authentication by the cluster, and its own rights."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator

import httpx2
import pytest

from queuectl.api.oidc.browser import CALLBACK
from queuectl.cluster.apply import apply
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.demo.controller import ControllerProcess
from queuectl.localcluster.layout import free_ports
from tests.api.support import COHORT
from tests.oidc.certified import LOCAL_CALLBACK, PUBLIC, authorize
from tests.oidc.plugin import id_token
from tests.support.controllers import CheckedController
from tests.support.people import account, binding, group_binding, namespace, token_of
from tests.support.tls import write_certificate
from tests.system.dashboard_users import issued_by, issuer_for
from tests.system.installation import QUICK, Installation

pytestmark = pytest.mark.system

ADMIN, MEMBER = account("serve-api", "admin"), account("serve-api", "member")
PATH = "/api/v1/cohorts/all"


@pytest.fixture(scope="module")
def port() -> int:
    [found] = free_ports(1)
    return found


@pytest.fixture(scope="module")
def issuer(port: int) -> Iterator[str]:
    with issuer_for(f"https://127.0.0.1:{port}{CALLBACK}", LOCAL_CALLBACK) as url:
        yield url


@pytest.fixture(scope="module")
def replica(
    installation: Installation, port: int, issuer: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControllerProcess]:
    """A second controller alongside that of the installation: a standby that answers requests."""
    folder = tmp_path_factory.mktemp("tls")
    files = write_certificate(folder, "queuectl")
    address = {"QUEUECTL_OIDC__DASHBOARD_URL": f"https://127.0.0.1:{port}"}
    settings = {
        **QUICK,
        **(issued_by(issuer) | address if issuer else {}),
        "QUEUECTL_LISTEN": f"0.0.0.0:{port}",
        "QUEUECTL_TLS_CERT_FILE": str(files.chain),
        "QUEUECTL_TLS_KEY_FILE": str(files.key),
    }
    controller = CheckedController.start(installation.cluster, settings, replica="-tls")
    try:
        controller.wait_ready()
        yield controller
    finally:
        controller.stop()


@pytest.fixture
def address(replica: ControllerProcess) -> str:
    return replica.api.replace("http://0.0.0.0", "https://127.0.0.1")


@pytest.fixture(scope="module")
def tokens(installation: Installation) -> dict[str, str]:
    async def make() -> dict[str, str]:
        api = await Api.connect(Connection(kubeconfig=installation.cluster.kubeconfig))
        rights = [
            binding("serve-api-admin", "queuectl-platform-admin", ADMIN),
            binding("serve-api-member", "queuectl-submitter", MEMBER, "serve-api"),
            group_binding("serve-api-ml", "queuectl-submitter", "oidc:ml", "serve-api"),
        ]
        await apply(api, [namespace("serve-api"), ADMIN, MEMBER, *rights])
        await api.close()
        return {
            "admin": await token_of(installation, ADMIN),
            "member": await token_of(installation, MEMBER),
        }

    return asyncio.run(make())


def client(address: str, token: str | None = None) -> httpx2.Client:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.Client(base_url=address, verify=trusting, headers=headers, trust_env=False)


def test_a_request_without_a_token_is_refused(address: str) -> None:
    with client(address) as anonymous:
        assert anonymous.get("/api/v1/workloads").status_code == 401
        assert anonymous.get("/healthz").status_code == 200
        assert anonymous.get("/metrics").status_code == 401


def test_roles_of_the_cluster_decide(address: str, tokens: dict[str, str]) -> None:
    with client(address, tokens["member"]) as member:
        assert member.get("/api/v1/workloads?namespace=serve-api").status_code == 200
        refused = member.put(PATH, json=COHORT)
        assert refused.status_code == 403
    with client(address, tokens["admin"]) as admin:
        assert admin.put(PATH, json=COHORT).status_code in (200, 201)
        lines = admin.get("/api/v1/audit?path=/api/v1/cohorts").json()["items"]
        audited = {(line["caller"].rpartition(":")[2], line["status"] // 100) for line in lines}
        assert audited == {("admin", 2), ("member", 4)}
        assert refused.headers["x-request-id"] in {line["requestId"] for line in lines}


def test_a_browser_signs_in_with_a_token(address: str, tokens: dict[str, str]) -> None:
    with client(address) as browser:
        opened = browser.post("/api/v1/session", json={"token": tokens["member"]})
        assert opened.status_code == 201
        assert browser.get("/api/v1/session").json()["name"].endswith(":serve-api:member")
        # Without the header of the dashboard.
        assert browser.delete("/api/v1/session").status_code == 403


@pytest.mark.usefixtures("tokens")
def test_roles_of_the_cluster_decide_for_groups_of_an_issuer(address: str, issuer: str) -> None:
    """``oidc:ml`` is bound in one namespace; ``system:masters`` of the issuer, to which eve belongs, is refused."""
    if not issuer:
        pytest.skip("oidc-provider cannot be installed")
    token = asyncio.run(id_token(issuer, PUBLIC, "bob"))
    with client(address, token) as bob:
        assert bob.get("/api/v1/session").json()["name"] == "oidc:bob"
        assert bob.get("/api/v1/workloads?namespace=serve-api").status_code == 200
        assert bob.get("/api/v1/workloads?namespace=default").status_code == 403
        assert bob.put(PATH, json=COHORT).status_code == 403
    with client(address, asyncio.run(id_token(issuer, PUBLIC, "eve"))) as eve:
        assert eve.get("/api/v1/session").status_code == 401


@pytest.mark.usefixtures("tokens")
def test_a_browser_signs_in_through_the_issuer(address: str, issuer: str) -> None:
    if not issuer:
        pytest.skip("oidc-provider cannot be installed")

    async def back(at: str) -> str:
        async with httpx2.AsyncClient(trust_env=False) as http:
            return await authorize(http, at, "bob")

    with client(address) as browser:
        started = browser.get("/ui/signin/oidc?next=/ui/workloads")
        answer = browser.get(asyncio.run(back(started.headers["location"])))
        assert "next=%2Fui%2Fworkloads" in answer.headers["location"]
        assert browser.cookies.get("__Host-queuectl")
        assert browser.get("/ui/workloads").status_code == 200


def test_no_token_is_in_answers_or_logs(
    replica: ControllerProcess, address: str, tokens: dict[str, str]
) -> None:
    with client(address, tokens["admin"]) as admin:
        admin.put(PATH, json=COHORT)
    text = replica.log.read_text()
    assert "api_write" in text
    for token in tokens.values():
        assert token not in text
        assert token.rpartition(".")[2] not in text
