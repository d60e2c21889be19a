"""The operator CloudNativePG with the `Cluster` of docs/how-to/database.md, and queuectl with the Secrets that the operator writes.

The operator runs as a process with its webhooks. It starts no PostgreSQL: its image is not part of the tests. A server of this machine has the
certificate and the role of the operator's Secrets instead.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
import yaml

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.db.embedded import PORT, server_account
from queuectl.db.migrate import upgrade
from queuectl.domain.errors import StoreUnavailable
from queuectl.localcluster import ApiServerError, ClusterSpec, LocalCluster, build
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.layout import LOOPBACK, free_ports
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.versions import CLOUDNATIVE_PG
from tests.operations.servers import EVERY, needs_tls, own_server, restart, socket_url
from tests.support.chart import helm_program
from tests.support.tls import write_certificate
from tests.system.demo_cluster import tools
from tests.system.transcript import Page, Shell, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(900)]

NAMESPACE: Final = "cnpg-system"
GROUP: Final = "postgresql.cnpg.io"
CLUSTERS: Final = f"/apis/{GROUP}/v1/namespaces/{SYSTEM_NAMESPACE}/clusters"
SECRETS: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"
HOST: Final = f"queuectl-db-rw.{SYSTEM_NAMESPACE}"
ADDRESS: Final = f"127.56.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
SECONDS: Final = 120.0

Document = dict[str, Any]


@dataclass(frozen=True)
class Operated:
    """A control plane with the operator, and a shell with all rights after the commands of the page."""

    cluster: LocalCluster
    page: Page
    shell: Shell

    def secret(self, name: str) -> dict[str, bytes]:
        data = self.cluster.client.get(f"{SECRETS}/{name}")["data"]
        return {key: base64.b64decode(text) for key, text in data.items()}


@contextmanager
def operator(cluster: LocalCluster, folder: Path) -> Iterator[Path]:
    """The operator with its definitions and webhooks. Returns its log."""
    [program] = build.ensure(LineProgress(), units=(CLOUDNATIVE_PG,)).programs.values()
    files = build.cached(CLOUDNATIVE_PG).files
    client = cluster.client
    for name, file in files.items():
        if name.startswith("crds/"):
            client.apply(yaml.safe_load(file.read_text()))
    plurals = {Path(name).stem for name in files if name.startswith("crds/")}
    wait_until(lambda: plurals <= _served(cluster), "the definitions are served", SECONDS)
    client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    written = write_certificate(folder, "operator")
    written.chain.rename(
        folder / "apiserver.crt"
    )  # names that the operator gives to a certificate of others
    written.key.rename(folder / "apiserver.key")
    webhook, metrics = free_ports(2)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "KUBECONFIG": str(cluster.kubeconfig),
        "OPERATOR_NAMESPACE": NAMESPACE,
        "WEBHOOK_CERT_DIR": str(folder),
    }
    command = [
        str(program), "controller", f"--webhook-port={webhook}", f"--metrics-bind-address={LOOPBACK}:{metrics}"
    ]  # fmt: skip
    log = folder / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output
        ) as process,
    ):
        try:
            wait_until(lambda: _listens(webhook), "the operator listens", SECONDS)
            bundle = base64.b64encode((folder / "apiserver.crt").read_bytes()).decode()
            for document in yaml.safe_load_all(files["webhooks.yaml"].read_text()):
                document["metadata"]["name"] = f"cnpg-{document['metadata']['name']}"
                for one in document["webhooks"]:
                    path = one["clientConfig"].pop("service")["path"]
                    url = f"https://{LOOPBACK}:{webhook}{path}"
                    one["clientConfig"] = {"url": url, "caBundle": bundle}
                client.apply(document)
            yield log
        finally:
            process.terminate()
            process.wait(30)


def _served(cluster: LocalCluster) -> set[str]:
    """The resources of the operator's group."""
    return {one["name"] for one in cluster.client.get(f"/apis/{GROUP}/v1")["resources"]}


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((LOOPBACK, port)) == 0


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """The commands of the page, until queuectl has the database of the operator."""
    shape = ClusterSpec(nodes=(), fsync=False, controllers=False, operators=())
    folder = tmp_path_factory.mktemp("operator")
    with (
        LocalCluster.start(shape, progress=LineProgress()) as cluster,
        operator(cluster, folder) as log,
    ):
        environment = tools(cluster)
        path = f"{helm_program().parent}:{environment['PATH']}"
        with shell(environment | {"PATH": path}) as typing:
            Page("install.md", typing).type("helm install")
            page = Page("database.md", typing)
            page.write("queuectl-db.yaml")
            page.type("kubectl apply -f queuectl-db.yaml")
            for name in ("queuectl-db-app", "queuectl-db-ca", "queuectl-db-server"):
                wait_until(
                    lambda name=name: cluster.client.exists(f"{SECRETS}/{name}"),  # type: ignore[misc]
                    f"{name}: {log.read_text()[-2000:]}",
                    SECONDS,
                )
            page.type("URL=")
            page.type("kubectl -n queuectl-system create secret generic queuectl-database")
            page.type("helm upgrade queuectl")
            yield Operated(cluster, page, typing)


def test_the_cluster_of_the_page_has_only_fields_that_exist(operated: Operated) -> None:
    """The API server and the webhook of the operator refuse others."""
    document = yaml.safe_load((operated.shell.folder / "queuectl-db.yaml").read_text())
    client = operated.cluster.client

    def created(changed: Document) -> Document:
        changed["metadata"]["name"] = "tried"
        return client.create(CLUSTERS, changed, dryRun="All", fieldValidation="Strict")

    assert created(copy.deepcopy(document))["spec"]["instances"] == 3
    unknown = copy.deepcopy(document)
    unknown["spec"]["replicas"] = 3
    with pytest.raises(ApiServerError, match="unknown field"):
        created(unknown)
    refused = copy.deepcopy(document)
    refused["spec"]["storage"]["size"] = "large"
    with pytest.raises(ApiServerError, match="webhook"):
        created(refused)


def test_the_secrets_of_the_operator_are_those_of_the_page(operated: Operated) -> None:
    uri = operated.secret("queuectl-db-app")["uri"]
    assert f"@{HOST}:{PORT}/queuectl".encode() in uri
    assert operated.secret("queuectl-database") == dict.fromkeys(
        ("migration-url", "url", "api-url"), uri
    )
    path = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/deployments/queuectl"
    pod = operated.cluster.client.get(path)["spec"]["template"]["spec"]
    [volume] = [one for one in pod["volumes"] if one["name"] == "database"]
    [source] = volume["projected"]["sources"]
    for item in source["secret"]["items"]:
        assert item["key"] in operated.secret(source["secret"]["name"])
    for container in (*pod["initContainers"], *pod["containers"]):
        env = {one["name"]: one for one in container["env"]}
        assert env["PGSSLMODE"]["value"] == "verify-full"
        for name in ("QUEUECTL_DATABASE_URL", "QUEUECTL_API_DATABASE_URL"):
            if name in env:
                named = env[name]["valueFrom"]["secretKeyRef"]
                assert operated.secret(named["name"])[named["key"]] == uri


@needs_tls
def test_queuectl_uses_a_server_with_the_certificate_and_the_role_of_the_operator(
    operated: Operated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {key: text.decode() for key, text in operated.secret("queuectl-db-app").items()}
    authority = tmp_path / "ca.crt"
    authority.write_bytes(operated.secret("queuectl-db-ca")["ca.crt"])
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", str(authority))
    resolve = socket.getaddrinfo

    def resolved(host: Any, *more: Any, **options: Any) -> Any:
        return resolve(ADDRESS if host == HOST else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    rules = (
        f"hostssl {EVERY} {ADDRESS}/32 scram-sha-256\nhostssl {EVERY} 127.0.0.0/8 scram-sha-256\n"
    )
    with own_server(rules=rules, superuser="postgres") as folder:
        account = server_account()
        for name, key in (("server.crt", "tls.crt"), ("server.key", "tls.key")):
            file = folder / name
            file.write_bytes(operated.secret("queuectl-db-server")[key])
            file.chmod(0o600)
            if account is not None:
                os.chown(file, account.uid, account.gid)
        asyncio.run(_prepared(folder, login))
        restart(folder)
        assert asyncio.run(upgrade(login["uri"])).up_to_date
        elsewhere = login["uri"].replace(HOST, ADDRESS)
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            asyncio.run(upgrade(elsewhere))


async def _prepared(folder: Path, login: dict[str, str]) -> None:
    """The role and the database of the operator, and its certificate."""
    connection = await asyncpg.connect(socket_url(folder, user="postgres"))
    try:
        for statement in (
            f"CREATE ROLE {login['username']} LOGIN PASSWORD '{login['password']}'",
            f"CREATE DATABASE {login['dbname']} OWNER {login['username']}",
            f"ALTER SYSTEM SET ssl_cert_file = '{folder}/server.crt'",
            f"ALTER SYSTEM SET ssl_key_file = '{folder}/server.key'",
            "ALTER SYSTEM SET ssl = on",
            f"ALTER SYSTEM SET listen_addresses = '{ADDRESS}'",
        ):
            await connection.execute(statement)
    finally:
        await connection.close()
