"""Names of the mutation of new jobs: MutatingAdmissionPolicies, or the webhook with their effect."""

from __future__ import annotations

from typing import Final

POLICY: Final = "MutatingAdmissionPolicy"
BINDING: Final = "MutatingAdmissionPolicyBinding"
CONFIGURATION: Final = "queuectl"
"""The MutatingWebhookConfiguration."""
NAME: Final = "queuectl-webhook"
"""Of the Secret, the ServiceAccount and the StatefulSet of the webhook."""
PATH: Final = "/mutate/"
"""The path of a policy is this and its name."""
