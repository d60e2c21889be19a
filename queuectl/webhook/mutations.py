"""The mutations of MutatingAdmissionPolicies, and the CEL that they use, evaluated as the API server does.

The policies use these additions of the API server: the message ``JSONPatch``, the function ``jsonpatch.escapeKey``, optional values,
and functions for strings and lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings
from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2

from queuectl.cel.expression import CompiledExpression, EvaluationError, compiled
from queuectl.cluster.writes import POLICY
from queuectl.domain.errors import BadInput
from queuectl.objects.documents import read_documents
from queuectl.objects.kinds.described import escaped

# ---- Mutations

Document = Mapping[str, Any]
MOST_ENTRIES: Final = 256
"""Entries of a list or map of an object from which a policy makes another one. A gang has at most 128 podsets.

The library copies the result of ``map`` and ``filter`` for each entry, and holds the interpreter: 9,000 scheduling gates would
take seconds, and no other object is answered in this time.
"""
_ITERATED: Final = re.compile(
    r"(?<!variables)\.\??(\w+)(?:\.orValue\(\[\]\))?\s*\.(?:map|filter)\("
)
"""The field of the object in such a call. A variable is made from such fields."""


class Mutation:
    """One policy: the JSON patch of a new object.

    Attributes:
        name: of the policy.
        iterated: fields of an object with a list or map from which it makes another one.
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
            "matchConditions",  # also of the webhook, so that the API server evaluates them
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
        variables = {one["name"]: one["expression"] for one in spec.get("variables", ())}
        patch: str = spec["mutations"][0]["jsonPatch"]["expression"]
        self._variables = {name: expression(source) for name, source in variables.items()}
        self._patch = expression(patch)
        self.iterated = {
            field for source in (*variables.values(), patch) for field in _ITERATED.findall(source)
        }

    def patch(
        self, document: Document, request: Document, old: Document | None = None
    ) -> list[dict[str, Any]]:
        """The JSON patch (RFC 6902) for a new or changed object.

        Args:
            document: the object.
            request: of the AdmissionReview.
            old: the object before an update; None at its creation.

        Raises:
            EvaluationError: an expression has no value for this object, or would take too long.
        """
        self._check_lengths(document)
        variables: dict[str, Any] = {}
        data = {"object": document, "oldObject": old, "request": request, "variables": variables}
        try:
            for name, expression in self._variables.items():
                variables[name] = expression.evaluate(data)
            patch: list[dict[str, Any]] = self._patch.evaluate(data)
        except EvaluationError as error:
            raise EvaluationError(f"policy {self.name}: {error}") from error
        return patch

    def _check_lengths(self, document: Document) -> None:
        for name, content in _fields_of(document):
            if name in self.iterated and len(content) > MOST_ENTRIES:
                raise EvaluationError(
                    f"policy {self.name}: {name} has {len(content):,} entries, and the webhook evaluates at most {MOST_ENTRIES}"
                )


def _fields_of(document: Document) -> Iterator[tuple[str, list[Any] | dict[str, Any]]]:
    """The names and values of all fields with a list or a map, at any depth."""
    left: list[Any] = [document]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield from ((k, v) for k, v in one.items() if isinstance(v, list | dict))
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)


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


# ---- CEL

_VARIABLES: Final = ("object", "oldObject", "request", "variables")
_FIELDS: Final = {"op": "", "path": "", "value": ".google.protobuf.Value"}
"""Fields of a JSONPatch with the type of their message; empty for strings."""


def expression(source: str) -> CompiledExpression:
    """The compiled expression, over :data:`_VARIABLES`.

    Raises:
        BadInput: it is not valid.
    """
    return CompiledExpression(compiled(_ENVIRONMENT, source))


def _index_of(elements: list[Any], element: Any) -> int:
    """The first position in a list; -1 if it is not there."""
    return elements.index(element) if element in elements else -1


def _messages() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="jsonpatch.proto", syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name]
    )
    message = file.message_type.add(name="JSONPatch")
    for number, (name, of) in enumerate(_FIELDS.items(), start=1):
        kind = types.TYPE_MESSAGE if of else types.TYPE_STRING
        message.field.add(
            name=name, number=number, type=kind, type_name=of or None, label=types.LABEL_OPTIONAL
        )
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _environment() -> cel.Env:
    text = cel.Type.STRING
    escape = cel.Overload("jsonpatch_escape_key_string", text, [text], impl=escaped)
    anything, items = cel.Type.DYN, cel.Type.List(cel.Type.DYN)
    index = cel.Overload(
        "list_index_of", cel.Type.INT, [items, anything], is_member=True, impl=_index_of
    )
    functions = cel.CelExtension(
        "jsonpatch",
        [
            cel.FunctionDecl("jsonpatch.escapeKey", [escape]),
            cel.FunctionDecl("indexOf", [index]),
        ],
    )
    return cel.NewEnv(
        _messages(),
        variables=dict.fromkeys(_VARIABLES, cel.Type.DYN),
        extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings(), functions],
    )


_ENVIRONMENT: Final = _environment()
