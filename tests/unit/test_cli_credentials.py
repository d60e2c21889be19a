"""The token of a command: its source, the servers that get it, and the time, with common kubeconfigs."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from cryptography.hazmat.primitives import serialization

from queuectl import kubeconfig
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.cli import connection
from queuectl.cli.errors import Exit
from queuectl.client import (
    Client,
    ClientOptions,
    InvalidOption,
    NoCredentials,
    Unauthenticated,
    credentials,
    tokenrequest,
)
from queuectl.client.kubernetes import context_of
from queuectl.domain.errors import BadInput
from queuectl.kubeconfig import KubeconfigContext
from tests.api.serving import serving
from tests.api.signed import ADMIN, NO_RIGHTS, people
from tests.doubles.store import MemoryStore
from tests.support.cli import Cli, queuectl_with
from tests.support.tls import write_certificate

SECRET = "a-token-that-no-message-shows"
EXEC_VERSION = "client.authentication.k8s.io/v1"


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A server with authentication."""
    with serving(MemoryStore(), authenticated=AuthenticationLayer(people())) as address:
        yield address


@pytest.fixture
def queuectl(
    guarded: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    """Runs the program in this process, for a user without a kubeconfig."""
    monkeypatch.setenv("QUEUECTL_SERVER", guarded)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    return partial(queuectl_with, monkeypatch, capfd)


def config(path: Path, user: dict[str, Any], name: str = "here", **context: str) -> Path:
    """A kubeconfig of one context."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"user": "alice", "cluster": "c", **context}}],
        "users": [{"name": "alice", "user": user}],
        "clusters": [{"name": "c", "cluster": {"server": "https://c.example"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def plugin(folder: Path, body: str, **more: Any) -> dict[str, Any]:
    """A program next to the kubeconfig that prints a credential."""
    script = folder / "plugin"
    script.write_text(f"#!{sys.executable}\n{body}")
    script.chmod(0o755)
    return {"exec": {"apiVersion": EXEC_VERSION, "command": "./plugin", **more}}


def giving(token: str, version: str = EXEC_VERSION) -> str:
    return (
        "import json, os\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        f"token = os.environ.get('GIVEN', {token!r})\n"
        f"print(json.dumps({{'apiVersion': {version!r}, 'kind': info['kind'], 'status': {{'token': token}}}}))\n"
    )


class TestTheTokenComesFrom:
    def test_a_file_on_the_command_line(self, queuectl: Cli, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(f"{ADMIN}\n")
        result = queuectl("get", "cq", "-o", "json", "--token-file", str(tmp_path / "token"))
        assert (result.code, '"items": []' in result.out) == (0, True), result.err

    def test_a_file_of_the_environment(
        self, queuectl: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "token").write_text(ADMIN)
        monkeypatch.setenv("QUEUECTL_TOKEN_FILE", str(tmp_path / "token"))
        assert queuectl("get", "cq").code == 0

    @pytest.mark.parametrize("command", ["simulate", "advise"])
    @pytest.mark.parametrize("by", ["option", "environment"])
    def test_a_file_also_for_a_simulation_of_recorded_jobs(
        self, queuectl: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, command: str
    ) -> None:
        (tmp_path / "token").write_text(NO_RIGHTS)
        if by == "environment":
            monkeypatch.setenv("QUEUECTL_TOKEN_FILE", str(tmp_path / "token"))
        typed = ["--token-file", str(tmp_path / "token")] if by == "option" else []
        result = queuectl(command, "-f", "docs/examples/nodes.yaml", "--history", "30d", *typed)
        assert (result.code, "without-rights may not" in result.err) == (5, True), result.err

    @pytest.mark.parametrize(
        ("typed", "there"),
        [
            (["--as-serviceaccount", "ml/admin"], {"QUEUECTL_TOKEN_FILE": "nowhere"}),
            (["--token-file", "token"], {"QUEUECTL_AS_SERVICEACCOUNT": "ml/other"}),
            ([], {"QUEUECTL_TOKEN_FILE": "token", "QUEUECTL_AS_SERVICEACCOUNT": "ml/other"}),
        ],
    )
    def test_an_option_before_variables_and_the_first_of_two_variables(
        self,
        queuectl: Cli,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        typed: list[str],
        there: dict[str, str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "token").write_text(ADMIN)
        config(tmp_path / "config", {"token": NO_RIGHTS})

        def made(account: str, _context: KubeconfigContext | None, _option: str) -> str:
            return {"ml/admin": ADMIN, "ml/other": NO_RIGHTS}[account]

        monkeypatch.setattr(tokenrequest, "made_for", made)
        for name, text in there.items():
            monkeypatch.setenv(name, text)
        result = queuectl("get", "cq", *typed)
        assert result.code == 0, result.err

    @pytest.mark.parametrize("form", ["token", "tokenFile", "exec", "exec with its environment"])
    def test_the_kubeconfig(self, queuectl: Cli, tmp_path: Path, form: str) -> None:
        (tmp_path / "secret").write_text(ADMIN)
        users: dict[str, Callable[[], dict[str, Any]]] = {
            "token": lambda: {"token": ADMIN},
            "tokenFile": lambda: {"tokenFile": "secret", "token": NO_RIGHTS},
            "exec": lambda: plugin(tmp_path, giving(ADMIN)),
            "exec with its environment": lambda: plugin(
                tmp_path, giving(NO_RIGHTS), env=[{"name": "GIVEN", "value": ADMIN}]
            ),
        }
        config(tmp_path / "config", users[form]())
        result = queuectl("get", "cq")
        assert result.code == 0, result.err

    def test_the_context_that_is_named(self, queuectl: Cli, tmp_path: Path) -> None:
        mine, other = tmp_path / "mine", tmp_path / "other"
        config(mine, {"token": NO_RIGHTS}, "mine")
        document = yaml.safe_load(config(other, {"token": ADMIN}, "other").read_text())
        document["contexts"][0]["context"]["user"] = document["users"][0]["name"] = "bob"
        other.write_text(yaml.safe_dump(document))
        both = f"{mine}{os.pathsep}{other}"
        assert queuectl("get", "cq", "--kubeconfig", both).code == Exit.NOT_ALLOWED
        assert queuectl("get", "cq", "--kubeconfig", both, "--context", "other").code == 0


@pytest.mark.parametrize(
    ("user", "code", "says"),
    [
        (None, 5, "no kubeconfig exists: create a token with `kubectl create token"),
        ({"client-certificate-data": SECRET}, 5, "client certificate, which only the API server"),
        (
            {"client-certificate": "x"},
            5,
            "--as-serviceaccount NAMESPACE/NAME, or create a token with",
        ),
        ({"username": "a", "password": SECRET}, 5, "has none: create a token"),
        ({"token": f"{SECRET} {SECRET}"}, 2, "holds characters"),
        ({"token": SECRET}, 5, "no valid token of the cluster"),
        ({"tokenFile": "nowhere"}, 2, "nowhere: No such file"),
        ({"exec": {"apiVersion": "v2", "command": "x"}}, 2, "is not of client.authentication"),
        (
            {"exec": {"apiVersion": EXEC_VERSION, "command": "./no", "installHint": "brew it"}},
            1,
            "brew it",
        ),
    ],
)
def test_a_missing_or_invalid_token_is_an_error_with_advice(
    queuectl: Cli, tmp_path: Path, user: dict[str, Any] | None, code: int, says: str
) -> None:
    if user is not None:
        config(tmp_path / "config", user)
    result = queuectl("get", "cq")
    assert result.code == code
    assert says in result.err
    assert SECRET not in result.err + result.out


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"print('{SECRET}')", "printed no ExecCredential"),
        ("raise SystemExit(3)", "failed with exit code 3"),
        (giving(SECRET, "client.authentication.k8s.io/v1beta1"), "another version"),
        (giving(""), "printed no token: create a token"),
        ("import time; time.sleep(60)", "printed no token within"),
    ],
)
def test_a_failing_plugin_is_named_and_its_output_is_not_shown(
    queuectl: Cli, tmp_path: Path, body: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "PLUGIN_SECONDS", 0.5 if "sleep" in body else 60.0)
    config(tmp_path / "config", plugin(tmp_path, body))
    result = queuectl("get", "cq")
    assert result.code in (Exit.FAILURE, Exit.NOT_ALLOWED)
    assert "plugin" in result.err
    assert says in result.err
    assert SECRET not in result.err + result.out


def test_a_plugin_that_prints_certificates_is_an_error_with_advice(
    queuectl: Cli, tmp_path: Path
) -> None:
    body = giving(SECRET).replace("'token':", "'clientCertificateData':")
    config(tmp_path / "config", plugin(tmp_path, body))
    result = queuectl("get", "cq")
    assert result.code == Exit.NOT_ALLOWED
    assert (
        "has a client certificate, which only the API server of Kubernetes accepts: act as a"
        in result.err
    )
    assert SECRET not in result.err + result.out


def test_a_missing_right_has_its_own_exit_code(queuectl: Cli, tmp_path: Path) -> None:
    config(tmp_path / "config", {"token": NO_RIGHTS})
    result = queuectl("get", "cq")
    assert (result.code, result.out) == (Exit.NOT_ALLOWED, "")
    assert "without-rights may not list clusterqueues" in result.err


def test_a_server_without_authentication_gets_no_token(tmp_path: Path) -> None:
    """The file does not exist: the client would fail if it read it."""
    seen = answered(ClientOptions(token_file=tmp_path / "none"), lambda _: 200)
    assert seen == [None]


def test_a_refused_token_is_read_again_and_a_file_that_changes_too(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    valid = "new"

    def status(shown: str | None) -> int:
        return 200 if shown == f"Bearer {valid}" else 401

    transport, seen = recording(status)
    options = ClientOptions(server="https://q.example", token_file=file)
    with Client(options=options, transport=transport, retries=0) as client:
        with pytest.raises(Unauthenticated):
            client.text("/")
        file.write_text("new")
        client.text("/")
        valid = "newer"
        file.write_text("newer")
        client.text("/")
    assert seen == [None, "Bearer old", "Bearer new", "Bearer newer"]


def test_a_pod_sends_the_token_of_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(ADMIN)
    (tmp_path / "namespace").write_text("ml\n")
    monkeypatch.setattr("queuectl.client.options.IN_CLUSTER", tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    options = ClientOptions()
    seen = answered(options, lambda shown: 200 if shown else 401, options.server)
    assert (seen, options.default_namespace()) == ([None, f"Bearer {ADMIN}"], "ml")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://q.example", True),
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000", True),
        ("http://localhost:8000", True),
        ("http://q.example", False),
        ("http://10.0.0.7:8000", False),
        ("http://localhost.example", False),
    ],
)
def test_a_token_never_goes_over_a_network_unencrypted(address: str, *, shown: bool) -> None:
    options = ClientOptions(token=SECRET)
    if shown:
        assert answered(options, lambda s: 200 if s else 401, address)[-1] is not None
    else:
        with pytest.raises(NoCredentials, match="unencrypted"):
            answered(options, lambda _: 401, address)


class TestAsAServiceAccount:
    """The answers of a real cluster are in tests/cluster/test_tokenrequest.py."""

    @pytest.mark.parametrize("by", ["option", "environment"])
    def test_its_token_is_requested_after_the_server_answers_401(
        self, queuectl: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
    ) -> None:
        asked: list[object] = []

        def made(account: str, context: KubeconfigContext | None, _option: str) -> str:
            asked.append((account, context and context.user))
            return ADMIN

        monkeypatch.setattr(tokenrequest, "made_for", made)
        config(tmp_path / "config", {"client-certificate-data": SECRET})
        if by == "environment":
            monkeypatch.setenv("QUEUECTL_AS_SERVICEACCOUNT", "ml/admin")
        given = ["--as-serviceaccount", "ml/admin"] if by == "option" else []
        result = queuectl("get", "cq", *given)
        assert (result.code, asked) == (0, [("ml/admin", "alice")]), result.err

    @pytest.mark.parametrize(
        ("arguments", "user", "code", "says"),
        [
            (
                ["admin"],
                {"token": SECRET},
                2,
                "--as-serviceaccount 'admin': not of the form NAMESPACE/NAME",
            ),
            (
                ["a/b/c"],
                {"token": SECRET},
                2,
                "--as-serviceaccount 'a/b/c': not of the form NAMESPACE/NAME",
            ),
            (["a/b"], None, 2, "needs a kubeconfig with a cluster"),
            (["a/b", "--token-file", "x"], {"token": SECRET}, 2, "exclude each other"),
            (["a/b"], {}, 5, "has none: create a token with"),
            (
                ["a/b"],
                {"client-certificate-data": SECRET},
                2,
                "client-certificate-data is not base",
            ),
            (["a/b"], {"client-certificate": "gone.crt"}, 2, "gone.crt: No such file"),
            (["a/b"], {"client-certificate-data": "AAAA"}, 2, "a key cannot be read"),
        ],
    )
    def test_a_token_that_cannot_be_requested_is_an_error_with_its_cause(
        self,
        queuectl: Cli,
        tmp_path: Path,
        arguments: list[str],
        user: dict[str, Any] | None,
        code: int,
        says: str,
    ) -> None:
        if user is not None:
            config(tmp_path / "config", user)
        result = queuectl("get", "cq", "--as-serviceaccount", *arguments)
        assert (result.code, says in result.err) == (code, True), result.err
        assert SECRET not in result.err + result.out

    @pytest.mark.parametrize(
        ("address", "scheme"),
        [
            ("socks5://bob:secret@proxy:1080", "the scheme is socks5"),
            ("proxy:3128", "the scheme is proxy"),
        ],
    )
    def test_a_proxy_of_another_kind_is_refused_by_file_context_and_field(
        self, queuectl: Cli, tmp_path: Path, address: str, scheme: str
    ) -> None:
        path = config(tmp_path / "config", {"token": SECRET})
        document = yaml.safe_load(path.read_text())
        document["clusters"][0]["cluster"]["proxy-url"] = address
        path.write_text(yaml.safe_dump(document))
        result = queuectl("get", "cq", "--as-serviceaccount", "a/b")
        assert result.code == 2
        error = " ".join(result.err.split())
        for part in (str(path), repr(document["current-context"]), "proxy-url", scheme):
            assert part in error
        assert "bob" not in error

    @pytest.mark.parametrize("scheme", ["http", "https"])
    def test_the_token_is_requested_through_the_proxy_of_the_kubeconfig(
        self, queuectl: Cli, tmp_path: Path, scheme: str
    ) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            address = f"{scheme}://127.0.0.1:{closed.getsockname()[1]}"
            path = config(tmp_path / "config", {"token": SECRET})
            document = yaml.safe_load(path.read_text())
            document["clusters"][0]["cluster"]["proxy-url"] = address
            path.write_text(yaml.safe_dump(document))
            result = queuectl("get", "cq", "--as-serviceaccount", "a/b")
        assert "no answer from the Kubernetes API server" in result.err
        assert "refused" in result.err, "by the proxy; the name of the cluster cannot be resolved"

    def test_a_key_with_a_password_is_refused_without_a_prompt(
        self, queuectl: Cli, tmp_path: Path
    ) -> None:
        pair = write_certificate(tmp_path, "alice")
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )
        user = {"client-certificate": pair.chain.name, "client-key": pair.key.name}
        config(tmp_path / "config", user)
        result = queuectl("get", "cq", "--as-serviceaccount", "a/b")
        assert (result.code, "a key cannot be read" in result.err) == (2, True), result.err

    def test_it_is_not_requested_unencrypted_over_a_network(
        self, queuectl: Cli, tmp_path: Path
    ) -> None:
        path = config(tmp_path / "config", {"token": SECRET})
        path.write_text(path.read_text().replace("https://c.example", "http://c.example"))
        result = queuectl("get", "cq", "--as-serviceaccount", "a/b")
        assert (result.code, "unencrypted" in result.err) == (5, True), result.err


def recording(status: Callable[[str | None], int]) -> tuple[httpx2.MockTransport, list[str | None]]:
    """A server, and the tokens it was shown."""
    seen: list[str | None] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers.get("Authorization"))
        return httpx2.Response(status(seen[-1]), json={})

    return httpx2.MockTransport(handle), seen


def answered(
    options: ClientOptions,
    status: Callable[[str | None], int],
    address: str = "https://q.example",
) -> list[str | None]:
    transport, seen = recording(status)
    options = replace(options, server=address)
    with Client(options=options, transport=transport) as client:
        client.text("/")
    return seen


class TestTheKubeconfig:
    def test_its_namespace_is_the_default_for_names(self, queuectl: Cli, tmp_path: Path) -> None:
        config(tmp_path / "config", {"token": ADMIN}, namespace="team-a")
        assert "team-a/train" in queuectl("explain", "train").err
        assert "team-b/train" in queuectl("explain", "train", "-n", "team-b").err

    def test_the_hand_over_to_kueue_names_the_cluster_that_is_selected(
        self, queuectl: Cli, tmp_path: Path
    ) -> None:
        path = config(tmp_path / "other", {"token": ADMIN}, "other")
        path.write_text(path.read_text().replace("https://c.example", "http://127.0.0.1:9"))
        selected = ("--kubeconfig", str(path), "--context", "other")
        result = queuectl("kueue", "hand-over", "--dry-run", *selected)
        assert (result.code, result.out) == (1, "cluster http://127.0.0.1:9\n"), result.err

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (f"{SECRET}: [", "not valid YAML"),
            (SECRET, "not a kubeconfig"),
            ("current-context: gone", "context 'gone' not found"),
        ],
    )
    def test_an_invalid_file_is_named_and_not_quoted(
        self, tmp_path: Path, content: str, says: str
    ) -> None:
        path = tmp_path / "config"
        path.write_text(content)
        with pytest.raises(BadInput, match=str(path)) as refused:
            kubeconfig.current_context(str(path))
        assert says in str(refused.value)
        assert SECRET not in str(refused.value)

    def test_a_named_file_must_exist(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="nowhere: not found"):
            kubeconfig.current_context(str(tmp_path / "nowhere"))

    def test_a_command_fails_with_the_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`doctor` and `init` report a command that fails as one of several findings."""
        (tmp_path / "config").write_text("[]")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        with pytest.raises(InvalidOption, match="not a kubeconfig"):
            connection.default_namespace()

    def test_a_variable_that_names_no_file_is_not_an_absent_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
        with pytest.raises(InvalidOption, match="nowhere: not found: set KUBECONFIG to another"):
            context_of(ClientOptions())

    def test_its_repr_has_no_token(self, tmp_path: Path) -> None:
        found = kubeconfig.current_context(str(config(tmp_path / "config", {"token": SECRET})))
        assert SECRET not in repr(found)


def test_a_ca_file_that_cannot_be_read_is_named(queuectl: Cli, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    result = queuectl("get", "cq", "--ca-file", str(tmp_path / "ca.pem"))
    assert result.code == Exit.BAD_INPUT
    assert "ca.pem: holds no certificate" in result.err


def test_a_server_with_its_own_ca_is_trusted_with_a_ca_file(queuectl: Cli, tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path, "queuectl")
    (tmp_path / "token").write_text(ADMIN)
    known = AuthenticationLayer(people())
    with serving(MemoryStore(), authenticated=known, certificate=certificate) as address:
        asked = ["get", "cq", "--server", address, "--token-file", str(tmp_path / "token")]
        refused = queuectl(*asked)
        assert (refused.code, "--ca-file or QUEUECTL_CA_FILE" in refused.err) == (1, True)
        assert queuectl(*asked, "--ca-file", str(certificate.chain)).code == 0


def test_a_port_forward_to_a_server_works_with_the_name_of_its_certificate(
    queuectl: Cli, tmp_path: Path
) -> None:
    name = "queuectl.queuectl-system.svc"
    certificate = write_certificate(tmp_path, "queuectl", dns=name)
    (tmp_path / "token").write_text(ADMIN)
    known = AuthenticationLayer(people())
    with serving(MemoryStore(), authenticated=known, certificate=certificate) as address:
        asked = ["get", "cq", "--server", address, "--token-file", str(tmp_path / "token")]
        asked += ["--ca-file", str(certificate.chain)]
        refused = queuectl(*asked)
        assert (refused.code, "--tls-server-name or QUEUECTL_TLS_" in refused.err) == (1, True)
        result = queuectl(*asked, "--tls-server-name", name)
        assert result.code == 0, result.err


def test_a_server_with_tls_at_an_http_address_is_named(queuectl: Cli, tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path, "queuectl")
    known = AuthenticationLayer(people())
    with serving(MemoryStore(), authenticated=known, certificate=certificate) as address:
        result = queuectl("get", "cq", "--server", address.replace("https", "http"))
    assert (result.code, "if it uses TLS, give an https:// address" in result.err) == (1, True)
