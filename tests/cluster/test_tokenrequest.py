"""Tokens of service accounts, which a real API server issues to the users of kubeconfigs."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl import kubeconfig
from queuectl.client import NoAnswer, NotPermitted, ObjectNotFound
from queuectl.client.tokenrequest import made_for
from queuectl.cluster.access import KubernetesAccess
from queuectl.cluster.apply import apply
from queuectl.cluster.client import Api
from queuectl.kubeconfig import KubeconfigContext
from tests.support.controlplane import ControlPlane
from tests.support.people import account, namespace

pytestmark = pytest.mark.system

OWN = "token-test"
ACCOUNT = f"{OWN}/admin"


@pytest.fixture
async def access(control_plane: ControlPlane, admin: Api) -> AsyncIterator[KubernetesAccess]:
    await apply(admin, [namespace(OWN), account(OWN, "admin")])
    access = await KubernetesAccess.connect(control_plane.kubeconfig)
    yield access
    await access.close()


def written(plane: ControlPlane, folder: Path, form: str) -> KubeconfigContext:
    """The kubeconfig of the administrator in another form."""
    document = yaml.safe_load(plane.cluster.kubeconfig.read_text())
    user, cluster = document["users"][0]["user"], document["clusters"][0]["cluster"]
    if form == "files":
        in_files(user, folder)
        in_files(cluster, folder)
    elif form == "a plugin":
        pair = {k.removesuffix("-data"): base64.b64decode(v).decode() for k, v in user.items()}
        status = {
            "clientCertificateData": pair["client-certificate"],
            "clientKeyData": pair["client-key"],
        }
        document["users"][0]["user"] = plugin(folder, status)
    elif form == "another name of the server":
        cluster["server"] = cluster["server"].replace("127.0.0.1", "localhost")
        cluster["tls-server-name"] = "kubernetes"
    elif form == "the name of another server":
        cluster["tls-server-name"] = "other.example"
    elif form == "no authority":
        del cluster["certificate-authority-data"]
    elif form == "an unverified server":
        del cluster["certificate-authority-data"]
        cluster["insecure-skip-tls-verify"] = True
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    found = kubeconfig.current_context(str(path))
    assert found is not None
    return found


def plugin(folder: Path, status: dict[str, str]) -> dict[str, Any]:
    """A program next to the kubeconfig that prints a credential."""
    version = "client.authentication.k8s.io/v1"
    (folder / "printed").write_text(
        json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    )
    command = {"command": "cat", "args": [str(folder / "printed")]}
    return {"exec": {"apiVersion": version, "interactiveMode": "Never", **command}}


def in_files(entry: dict[str, Any], folder: Path) -> None:
    """Replace the data by names of files relative to the kubeconfig."""
    for field in [field for field in entry if field.endswith("-data")]:
        name = field.removesuffix("-data")
        (folder / f"{name}.pem").write_bytes(base64.b64decode(entry.pop(field)))
        entry[name] = f"{name}.pem"


@pytest.mark.parametrize(
    "form",
    ["as it is", "files", "a plugin", "another name of the server", "an unverified server"],
)
async def test_a_user_with_a_client_certificate_gets_a_valid_token(
    control_plane: ControlPlane, access: KubernetesAccess, tmp_path: Path, form: str
) -> None:
    caller = await access.who(
        made_for(ACCOUNT, written(control_plane, tmp_path, form), "--as-serviceaccount")
    )
    assert caller is not None
    assert caller.name == f"system:serviceaccount:{OWN}:admin"


@pytest.mark.usefixtures("access")
@pytest.mark.parametrize("form", ["as it is", "a plugin"])
async def test_a_user_with_a_token_gets_another_if_rbac_allows_it(
    control_plane: ControlPlane, tmp_path: Path, form: str
) -> None:
    path = control_plane.cluster.kubeconfig_for_service_account(OWN, "admin")
    if form == "a plugin":
        document = yaml.safe_load(path.read_text())
        document["users"][0]["user"] = plugin(tmp_path, document["users"][0]["user"])
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump(document))
    with pytest.raises(NotPermitted, match=r"cannot create resource \"serviceaccounts/token\""):
        made_for(ACCOUNT, kubeconfig.current_context(str(path)), "--as-serviceaccount")


@pytest.mark.usefixtures("access")
@pytest.mark.parametrize(
    ("name", "says"),
    [(f"{OWN}/nobody", 'serviceaccounts "nobody" not found'), ("nowhere/admin", "not found")],
)
async def test_an_account_that_does_not_exist_is_named(
    control_plane: ControlPlane, name: str, says: str
) -> None:
    with pytest.raises(ObjectNotFound, match=f"no token of ServiceAccount {name}") as no:
        made_for(
            name,
            kubeconfig.current_context(str(control_plane.cluster.kubeconfig)),
            "--as-serviceaccount",
        )
    assert says in str(no.value)


@pytest.mark.parametrize("form", ["no authority", "the name of another server"])
async def test_a_server_without_a_trusted_certificate_receives_nothing(
    control_plane: ControlPlane, tmp_path: Path, form: str
) -> None:
    with pytest.raises(NoAnswer, match="certificate verify failed"):
        made_for(ACCOUNT, written(control_plane, tmp_path, form), "--as-serviceaccount")
