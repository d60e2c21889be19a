"""The mutations of deploy/, read from its MutatingAdmissionPolicies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from queuectl.cel.expression import EvaluationError
from queuectl.cluster.webhooks import POLICY
from queuectl.domain.errors import BadInput
from queuectl.objects.documents import read_documents
from queuectl.webhook.cel import expression

Document = Mapping[str, Any]


class Mutation:
    """One policy: the JSON patch of a new object.

    Attributes:
        name: of the policy.
    """

    def __init__(self, policy: Document) -> None:
        """Compile the expressions of a policy.

        Raises:
            BadInput: an expression is not valid, or the policy has parts that are not supported.
        """
        spec = policy["spec"]
        self.name: str = policy["metadata"]["name"]
        given = {
            "failurePolicy",
            "matchConditions",  # of the webhook, too, so that the API server evaluates them
            "matchConstraints",
            "mutations",
            "reinvocationPolicy",
            "variables",
        }
        if not set(spec) <= given:
            raise BadInput(
                f"{POLICY} {self.name}: {', '.join(sorted(set(spec) - given))}: not supported"
            )
        if [one["patchType"] for one in spec["mutations"]] != ["JSONPatch"]:
            # The next mutation would be of the patched object.
            raise BadInput(f"{POLICY} {self.name}: it must have one mutation, a JSONPatch")
        self._variables = {
            one["name"]: expression(one["expression"]) for one in spec.get("variables", ())
        }
        self._patch = expression(spec["mutations"][0]["jsonPatch"]["expression"])

    def patch(
        self, document: Document, request: Document, old: Document | None = None
    ) -> list[dict[str, Any]]:
        """The JSON patch (RFC 6902) for a new or changed object.

        Args:
            document: the object.
            request: of the AdmissionReview.
            old: the object before an update; None at its creation.

        Raises:
            EvaluationError: an expression has no value for this object.
        """
        variables: dict[str, Any] = {}
        data = {"object": document, "oldObject": old, "request": request, "variables": variables}
        try:
            for name, expression in self._variables.items():
                variables[name] = expression.evaluate(data)
            patch: list[dict[str, Any]] = self._patch.evaluate(data)
        except EvaluationError as error:
            raise EvaluationError(f"policy {self.name}: {error}") from error
        return patch


def mutations(documents: Iterable[Document]) -> dict[str, Mutation]:
    """The mutations among the documents, by name. Raises BadInput."""
    found = (Mutation(one) for one in documents if one["kind"] == POLICY)
    return {one.name: one for one in found}


def read_mutations(file: Path) -> dict[str, Mutation]:
    """The mutations of a file that the chart has written.

    Raises:
        BadInput: naming the file, or a policy in it.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror or error}") from None
    return mutations(one.body for one in read_documents(content, str(file)))
