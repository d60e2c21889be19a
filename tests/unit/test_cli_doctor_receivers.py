"""``queuectl doctor`` on receivers: it names what keeps each from being reached, and sends nothing."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from queuectl.cli.doctor.findings import Level
from queuectl.cli.doctor.receivers import examine

HOSTS = {
    "hooks.example.org": ["93.184.216.34"],
    "inside.example.org": ["93.184.216.34", "10.0.0.5"],
}


def lookup(host: str) -> list[str]:
    if host not in HOSTS:
        raise OSError("unknown host")
    return HOSTS[host]


def hook(name: str, host: str, secret: str = "good", **fields: object) -> dict[str, object]:
    return {
        "name": name,
        "kind": "webhook",
        "url": f"https://{host}/",
        "hmacSecretFile": secret,
        **fields,
    }


def test_each_receiver_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    (tmp_path / "good").write_text(base64.b64encode(b"x" * 32).decode())
    (tmp_path / "short").write_text("c2hvcnQ=")
    (tmp_path / "http").write_text("http://hooks.slack.com/s3cret")
    file = tmp_path / "receivers.yaml"
    receivers = [
        hook("good", "hooks.example.org"),
        hook("permitted", "inside.example.org", allowedNetworks=["10.0.0.0/8"]),
        hook("private", "inside.example.org"),
        hook("absent", "none.example.org"),
        hook("missing", "hooks.example.org", "missing"),
        hook("short", "hooks.example.org", "short"),
        {"name": "chat", "kind": "slack", "urlFile": "http"},
    ]
    file.write_text(yaml.safe_dump({"receivers": receivers}))
    findings = examine(file, lookup)
    problems = {
        f.message.partition(":")[0]: f.message for f in findings if f.level is Level.PROBLEM
    }
    assert problems.keys() == {"private", "absent", "missing", "short", "chat"}
    assert "an address that is not permitted" in problems["private"]
    assert "is not resolved" in problems["absent"]
    assert "No such file" in problems["missing"]
    assert "24 to 64 bytes" in problems["short"]
    assert "https://" in problems["chat"]
    assert "s3cret" not in str(findings)
    [text] = {f.message for f in findings if f.level is Level.OK}
    assert text == "2 receivers of 7 with readable credentials and permitted addresses"


def test_a_wrong_file_is_one_problem_and_no_file_has_no_finding(tmp_path: Path) -> None:
    [problem] = examine(tmp_path / "absent")
    assert problem.level is Level.PROBLEM
    assert "QUEUECTL_NOTIFY_FILE" in problem.message
    assert examine(None) == []
