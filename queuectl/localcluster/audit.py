"""The audit log of an API server: the requests of the ServiceAccounts in queuectl's namespace, with refused requests.

The variable QUEUECTL_AUDIT_LOGS is the folder of the logs. Each cluster has one file with its name. Without the variable,
there is no log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

if TYPE_CHECKING:
    from queuectl.localcluster.layout import Layout

VARIABLE: Final = "QUEUECTL_AUDIT_LOGS"
_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # A watch that ends with the API server has no later stage than ResponseStarted.
    "omitStages": ["RequestReceived"],
    # Requests that no rule matches are not logged.
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:queuectl-system"]}],
}


def flags(layout: Layout) -> tuple[str, ...]:
    """The flags of the API server for the log; none without the variable."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return ()
    logs = Path(wanted).expanduser().absolute()
    logs.mkdir(parents=True, exist_ok=True)
    policy = layout.home / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(_POLICY))
    return (f"--audit-policy-file={policy}", f"--audit-log-path={logs / layout.name}.log")
