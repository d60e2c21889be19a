"""The file with the receivers: what is read from it, and what is refused with which message."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl.domain.errors import BadInput
from queuectl.domain.notifications import EventType, Mode
from queuectl.notify.receivers import SlackTarget, SmtpTarget, WebhookTarget
from queuectl.notify.receivers_file import (
    MOST,
    ReceiverList,
    credentials_of,
    read_receivers,
    unreadable_credentials,
)

WEBHOOK = {"name": "hook", "kind": "webhook", "url": "https://hooks.example.org/q", "hmacSecretFile": "hook-secret"}  # fmt: skip
SLACK = {"name": "chat", "kind": "slack", "urlFile": "chat-url"}
SMTP = {"name": "mail", "kind": "smtp", "host": "smtp.example.org", "from": "queuectl@example.org"}


def written(folder: Path, *receivers: Any) -> Path:
    file = folder / "receivers.yaml"
    file.write_text(yaml.safe_dump({"receivers": list(receivers)}))
    return file


def test_receivers_are_read_with_paths_from_the_folder_of_the_file(tmp_path: Path) -> None:
    receives = {"clusterQueues": ["gpus"], "namespaces": ["team-a"], "events": ["workload.failed"], "mode": "digest"}  # fmt: skip
    hook = {**WEBHOOK, "namespaces": ["team-a"], "receives": receives, "digestSeconds": 3600}
    chat = {**SLACK, "receives": {"all": True}, "maxAgeSeconds": 600, "maxRows": 50}
    login = {
        "userNameFile": "user",
        "passwordFile": "/etc/password",
        "port": 465,
        "security": "tls",
    }
    mail = {**SMTP, **login, "to": "ops@example.org", "caFile": "ca.crt", "allowedNetworks": ["10.0.0.0/8"]}  # fmt: skip
    first, second, third = read_receivers(written(tmp_path, hook, chat, mail))
    assert first.target == WebhookTarget("https://hooks.example.org/q", tmp_path / "hook-secret")
    audience = first.audience
    assert audience.namespaces == audience.own_namespaces == frozenset({"team-a"})
    assert audience.queues == frozenset({"gpus"})
    assert audience.events == frozenset({EventType.FAILED})
    assert (audience.mode, first.modes) == (Mode.DIGEST, (Mode.IMMEDIATE, Mode.DIGEST))
    assert second.target == SlackTarget(tmp_path / "chat-url")
    assert (second.audience.everything, second.audience.namespaces) == (True, None)
    assert (second.bounds.max_age, second.bounds.max_rows) == (600, 50)
    assert isinstance(third.target, SmtpTarget)
    assert (third.target.port, third.target.password_file) == (465, Path("/etc/password"))
    assert third.audience.personal
    assert credentials_of(third) == (tmp_path / "ca.crt", tmp_path / "user", Path("/etc/password"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({**WEBHOOK, "secret": "s3cret"}, "receivers[0] (hook): secret: unknown field"),
    ({**WEBHOOK, "url": "http://hooks.example.org"}, "(hook): url: the address does not begin with https://"),
    ({**WEBHOOK, "url": "https://me:s3cret@hooks.example.org"}, "(hook): url: the address has a user"),
    ({**WEBHOOK, "url": "https://hooks.example.org:0/"}, "(hook): url: the port is not between"),
    ({**WEBHOOK, "url": "https://hooks.example.org:99999/"}, "(hook): url: the address has a faulty"),
    ({**WEBHOOK, "url": "https://hooks.example.org/#part"}, "(hook): url: the address has a user, a backslash or a fragment"),
    ({**WEBHOOK, "url": "https://10.1.2.3/"}, "(hook): allowedNetworks: no message may go to the address 10.1.2.3"),
    ({**WEBHOOK, "url": "https://[::ffff:10.1.2.3]/"}, "allowedNetworks: no message may go to"),
    ({**WEBHOOK, "url": "https://169.254.169.254/", "allowedNetworks": ["10.0.0.0/8"]}, "allowedNetworks: no message may go to"),
    ({**WEBHOOK, "url": "https://127.0.0.1/"}, "allowedNetworks: no message may go to the address 127.0.0.1"),
    ({**WEBHOOK, "url": ["https://x"]}, "(hook): url: must be a string"),
    ({**WEBHOOK, "url": "https://" + "x" * 5000}, "(hook): url: the address is too long"),
    ({**WEBHOOK, "allowedNetworks": ["10.0.0.1/8"]}, "allowedNetworks.0: '10.0.0.1/8' is not a network"),
    ({**WEBHOOK, "allowedNetworks": ["0.0.0.0/0"]}, "(hook): "),
    ({**WEBHOOK, "namespaces": []}, "(hook): namespaces: "),
    ({**WEBHOOK, "namespaces": ["A b"]}, "namespaces.0: 'A b' is not the name of a namespace"),
    ({**WEBHOOK, "receives": {"events": ["workload.failed"]}}, "receives: events needs all, clusterQueues or namespaces"),
    ({**WEBHOOK, "receives": {"all": True, "events": ["x"]}}, "receives.events.0: must be"),
    ({**WEBHOOK, "receives": {"all": "yes"}}, "receives.all: must be true or false"),
    ({**WEBHOOK, "receives": {"all": True, "mode": "digest"}}, "it sends no digests"),
    ({**WEBHOOK, "digestSeconds": 5}, "between a minute and a week"),
    ({**WEBHOOK, "digestSeconds": float("nan")}, "(hook): digestSeconds: "),
    ({**WEBHOOK, "maxRows": 10**400}, "(hook): maxRows: must be less than or equal"),
    ({**WEBHOOK, "maxAgeSeconds": -1}, "(hook): maxAgeSeconds: must be greater than or equal"),
    ({**WEBHOOK, "name": "A"}, "the name is not a label of DNS"),
    ({**WEBHOOK, "name": "x" * 400}, "the name is not a label of DNS"),
    ({**WEBHOOK, "name": ["x"]}, "receivers[0]: name: must be a string"),
    ({**WEBHOOK, "kind": "irc"}, "(hook): kind: must be webhook, slack, smtp"),
    ({**WEBHOOK, "kind": ["webhook"]}, "(hook): kind: must be webhook, slack, smtp"),
    ({"name": "hook", "kind": "webhook"}, "(hook): url: is required"),
    ({**SLACK, "url": "https://hooks.slack.com/services/s3cret"}, "(chat): url: unknown field"),
    ({**SMTP, "from": "a@example.org, b@example.org"}, "(mail): from: the email address has a form"),
    ({**SMTP, "from": "a@example.org\r\nBcc: b@example.org"}, "(mail): from: the email address has a form"),
    ({**SMTP, "port": 0}, "(mail): port: must be greater than or equal to 1"),
    ({**SMTP, "security": "none"}, "(mail): security: must be 'starttls' or 'tls'"),
    ({**SMTP, "host": "0x7f.1"}, "(mail): host: the host ends in a number"),
    ({**SMTP, "host": "10.1.2.3"}, "no message may go to the address 10.1.2.3"),
    ({**SMTP, "userNameFile": "user"}, "a login needs a file with the user name and one"),
    ({**SMTP, "receives": {"all": True}}, "(mail): to: an email address is required"),
]  # fmt: skip


def test_a_wrong_receiver_is_named_with_its_file_and_its_field_and_no_secret(
    tmp_path: Path,
) -> None:
    unexpected = []
    for receiver, text in WRONG:
        file = written(tmp_path, receiver)
        try:
            message = f"accepted: {read_receivers(file)}"
        except BadInput as error:
            message = str(error)
        named = message.startswith(f"{file}: receivers[0]")
        if not named or text not in message or "s3cret" in message:
            unexpected.append((receiver, message))
    assert not unexpected


FILES: list[tuple[str, str]] = [
    ("", "receivers: is required"),
    ("receivers: {}", "receivers: is required"),
    ("receivers: []\nother: 1", "other: unknown key"),
    ("receivers: [1]", "receivers[0]: must be an object"),
    ("receivers: [", ""),
    ("receivers: [" + "[" * 3000, ""),
    ("receivers: " + yaml.safe_dump([WEBHOOK, WEBHOOK], default_flow_style=True), "receivers[1] (hook): name: another receiver has this name"),
    ("receivers: " + "[" + "{}," * 10_000 + "]", f"has 10000 receivers, more than {MOST}"),
    (json.dumps({"receivers": [{**SMTP, "caFile": "a\0b"}]}), "caFile: has characters that are not allowed"),
    (json.dumps({"receivers": [{**SLACK, "urlFile": "\ud800"}]}), "urlFile: has characters that are not allowed"),
    (json.dumps({"receivers": [{**SLACK, "name": "\ud800"}]}), "the name is not a label"),
    ('{"receivers": [], "\\ud800": 1}', "unknown key"),
    ("receivers: []\n#" + "x" * (1 << 20), "has more than 1048576 bytes"),
]  # fmt: skip


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "receivers.yaml"
    for content, text in FILES:
        file.write_text(content)
        with pytest.raises(BadInput) as refused:
            read_receivers(file)
        assert str(file) in str(refused.value)
        assert text in str(refused.value)
        receivers = ReceiverList(file)
        receivers.refresh()
        assert receivers.error.encode()  # a log and an answer can hold it
    with pytest.raises(BadInput, match=r"QUEUECTL_NOTIFY_FILE: .*No such file"):
        read_receivers(tmp_path / "absent")


def test_a_missing_credential_is_named_and_stops_nothing(tmp_path: Path) -> None:
    [hook, mail] = read_receivers(written(tmp_path, WEBHOOK, {**SMTP, "caFile": "ca.crt"}))
    assert unreadable_credentials(hook) == ("credential hook-secret: No such file or directory",)
    assert unreadable_credentials(mail) == (f"{tmp_path / 'ca.crt'}: No such file or directory",)
    (tmp_path / "hook-secret").write_text("c2VjcmV0")
    assert unreadable_credentials(hook) == ()


def test_a_changed_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, WEBHOOK)
    receivers = ReceiverList(file)
    assert receivers.refresh()
    assert not receivers.refresh()
    written(tmp_path, WEBHOOK, SLACK)
    assert receivers.refresh()
    assert [each.name for each in receivers.current] == ["hook", "chat"]
    for content in ("receivers: x", None):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        assert receivers.refresh()
        assert str(file) in receivers.error
        assert [each.name for each in receivers.current] == ["hook", "chat"]
    at_start = ReceiverList(file)
    assert at_start.refresh()
    assert (at_start.current, at_start.error == receivers.error) == ((), True)
    # As the kubelet does: the folder is replaced behind a link.
    written(tmp_path, SLACK)
    os.utime(file, (1.0, 1.0))
    assert receivers.refresh()
    assert (receivers.error, receivers.named("hook")) == ("", None)
