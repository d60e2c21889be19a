"""CEL as the API server evaluates it for a MutatingAdmissionPolicy, as far as the policies of deploy/ use it.

The policies use these additions of the API server: the message ``JSONPatch``, the function ``jsonpatch.escapeKey``, optional values,
and functions for strings and lists.
"""

from __future__ import annotations

from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings
from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2

from queuectl.cel.expression import CompiledExpression, compiled

VARIABLES: Final = ("object", "oldObject", "request", "variables")

_FIELDS: Final = {"op": "", "path": "", "value": ".google.protobuf.Value"}
"""Fields of a JSONPatch with the type of their message; empty for strings."""


def expression(source: str) -> CompiledExpression:
    """The compiled expression, over :data:`VARIABLES`.

    Raises:
        BadInput: it is not valid.
    """
    return CompiledExpression(compiled(_ENVIRONMENT, source))


def _escape_key(key: str) -> str:
    """A key as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


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
    escape = cel.Overload("jsonpatch_escape_key_string", text, [text], impl=_escape_key)
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
        variables=dict.fromkeys(VARIABLES, cel.Type.DYN),
        extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings(), functions],
    )


_ENVIRONMENT: Final = _environment()
