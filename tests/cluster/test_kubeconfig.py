"""A kubeconfig that cannot be used ends in one sentence that names the file and what to do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.cluster.connection import Connection, open_client
from queuectl.domain.errors import BadInput
from queuectl.kubeconfig import check, current_context

Kubeconfig = dict[str, Any]
SECRET = "a-token-that-no-message-shows"
VALID: Kubeconfig = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {"token": SECRET}}],
    "current-context": "c",
}


async def opened(path: Path) -> None:
    await (await open_client(Connection(kubeconfig=path))).close()


async def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as refused:
        await opened(path)
    return str(refused.value)


def cluster(**fields: object) -> Callable[[Kubeconfig], None]:
    return lambda config: config["clusters"][0]["cluster"].update(fields)


def user(**fields: object) -> Callable[[Kubeconfig], None]:
    return lambda config: config["users"][0].update(user=fields)


def without(name: str) -> Callable[[Kubeconfig], None]:
    return lambda config: config.update({name: []})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "not found: set KUBECONFIG to another file"),
        ("", "not a kubeconfig: set KUBECONFIG to another file"),
        (SECRET, "not a kubeconfig: set KUBECONFIG to another file"),
        ("[]", "not a kubeconfig: set KUBECONFIG to another file"),
        (f"{SECRET}: [", "not valid YAML: set KUBECONFIG to another file"),
        ("{}", "no current context: `kubectl config use-context` sets one"),
        ("current-context: gone", "'gone' not found: `kubectl config get-contexts` lists"),
    ],
)
async def test_a_file_that_is_not_a_kubeconfig(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    message = await refusal(path)
    assert message.startswith(f"kubeconfig {path}")
    assert says in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (without("clusters"), "the file has no cluster for this context"),
        (without("users"), "the file has no credentials for user 'u'"),
        (cluster(server=7), "clusters[].cluster.server: not the URL of a server"),
        (cluster(server="127.0.0.1"), "clusters[].cluster.server: not the URL of a server"),
        (cluster(server="https://[::1"), "clusters[].cluster.server: not the URL of a server"),
        (
            cluster(**{"certificate-authority": "no"}),
            "cluster.certificate-authority: the file does",
        ),
        (cluster(**{"certificate-authority-data": "!"}), "certificate-authority-data: not base64"),
        (cluster(**{"certificate-authority-data": [1]}), "certificate-authority-data: not base64"),
        (user(token=[SECRET]), "users[].user.token: not a text"),
        (user(tokenFile="no"), "users[].user.tokenFile: the file does not exist"),
        (user(**{"client-certificate-data": "!"}), "client-certificate-data: not base64"),
        (user(**{"client-key": "no"}), "users[].user.client-key: the file does not exist"),
        (user(exec=[]), "users[].user.exec.command: not the name of a program"),
        (
            user(exec={"command": "no-such-program"}),
            "'no-such-program' is not installed: install it",
        ),
        (
            user(exec={"command": "./no", "installHint": "see\nthe page"}),
            "not installed: see the page",
        ),
    ],
)
async def test_a_context_that_cannot_be_used(
    tmp_path: Path, break_it: Callable[[Kubeconfig], None], says: str
) -> None:
    config = copy.deepcopy(VALID)
    break_it(config)
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    message = await refusal(path)
    assert message.startswith(f"kubeconfig {path}, context 'c': ")
    assert says in message
    assert "\n" not in message
    assert SECRET not in message


async def test_a_valid_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(VALID))
    await opened(path)


def test_data_in_lines_is_base64(tmp_path: Path) -> None:
    config = copy.deepcopy(VALID)
    cluster(**{"certificate-authority-data": "QUJD\nREVG\n"})(config)
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    context = current_context(str(path))
    assert context is not None
    check(context)


async def test_invalid_certificates_are_named(tmp_path: Path) -> None:
    path, text = tmp_path / "config", "aGVsbG8="
    pair = {"client-certificate-data": text, "client-key-data": text}
    for damage in (cluster(**{"certificate-authority-data": text}), user(**pair)):
        config = copy.deepcopy(VALID)
        damage(config)
        path.write_text(yaml.safe_dump(config))
        said = await refusal(path)
        assert said.startswith(
            f"kubeconfig {path}: its certificate authority, client certificate or key"
        )


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just("c") | st.just("u"),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["name", "cluster", "user", "server", "token", "exec", "auth-provider", "command"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(field=st.sampled_from([*VALID, "preferences", "extensions"]), value=odd)
async def test_a_field_of_any_form_gives_a_client_or_a_sentence(
    tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(VALID | {field: value}))
    with suppress(BadInput):
        await opened(path)
