"""The syntax tree of a checked expression, as far as it is read and changed here.

The messages follow ``cel/expr/checked.proto`` and ``syntax.proto``. Fields that are not declared survive a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

from queuectl.domain.errors import BadInput

_TYPE_URL: Final = "type.googleapis.com/cel.expr.CheckedExpr"
_FIELDS: Final[Mapping[str, Mapping[str, tuple[int, str, bool]]]] = {
    "Checked": {"types": (3, "TypesEntry", True), "expr": (4, "Expr", False)},
    "Parsed": {"expr": (2, "Expr", False)},
    "TypesEntry": {"key": (1, "int64", False), "value": (2, "Type", False)},
    "Type": {
        "dyn": (1, "Nothing", False),
        "primitive": (3, "int64", False),
        "map": (7, "MapType", False),
        "message": (9, "string", False),
        "abstract": (14, "AbstractType", False),
    },
    "AbstractType": {"name": (1, "string", False)},
    "Nothing": {},
    "MapType": {"key": (1, "Type", False), "value": (2, "Type", False)},
    "Expr": {
        "id": (2, "int64", False),
        "const": (3, "Constant", False),
        "ident": (4, "Ident", False),
        "select": (5, "Select", False),
        "call": (6, "Call", False),
        "list": (7, "List", False),
        "struct": (8, "Struct", False),
        "comprehension": (9, "Comprehension", False),
    },
    "Constant": {"boolean": (2, "bool", False), "text": (6, "string", False)},
    "Ident": {"name": (1, "string", False)},
    "Select": {
        "operand": (1, "Expr", False),
        "field": (2, "string", False),
        "test_only": (3, "bool", False),
    },
    "Call": {
        "target": (1, "Expr", False),
        "function": (2, "string", False),
        "args": (3, "Expr", True),
    },
    "List": {"elements": (1, "Expr", True)},
    "Struct": {"entries": (2, "Entry", True)},
    "Entry": {"map_key": (3, "Expr", False), "value": (4, "Expr", False)},
    "Comprehension": {
        "iter_var": (1, "string", False),
        "iter_range": (2, "Expr", False),
        "accu_var": (3, "string", False),
        "accu_init": (4, "Expr", False),
        "loop_condition": (5, "Expr", False),
        "loop_step": (6, "Expr", False),
        "result": (7, "Expr", False),
    },
}
_MOST_NODES: Final = 20_000
_KINDS: Final = ("const", "ident", "select", "call", "list", "struct", "comprehension")
_BRANCHES: Final = tuple(
    k for k, (_, kind, _) in _FIELDS["Comprehension"].items() if kind == "Expr"
)


def _classes() -> tuple[Any, Any]:
    types = descriptor_pb2.FieldDescriptorProto
    scalars = {"int64": types.TYPE_INT64, "string": types.TYPE_STRING, "bool": types.TYPE_BOOL}
    file = descriptor_pb2.FileDescriptorProto(
        name="checked.proto", package="checked", syntax="proto3"
    )
    for name, of in _FIELDS.items():
        message = file.message_type.add(name=name)
        if name == "Expr":
            message.oneof_decl.add(name="kind")
        if name in ("Constant", "Type"):
            message.oneof_decl.add(name="value")
        message.options.map_entry = name == "TypesEntry"
        for field, (number, kind, many) in of.items():
            added = message.field.add(name=field, number=number)
            added.label = types.LABEL_REPEATED if many else types.LABEL_OPTIONAL
            added.type = scalars.get(kind, types.TYPE_MESSAGE)
            if kind not in scalars:
                added.type_name = f".checked.{kind}"
            if field in _KINDS or name in ("Constant", "Type"):
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    named = map(pool.FindMessageTypeByName, ("checked.Checked", "checked.Parsed"))
    first, second = map(message_factory.GetMessageClass, named)
    return first, second


_CHECKED, _PARSED = _classes()


def parse(serialized: bytes) -> Any:
    """The tree of a serialized expression, with the type of each node if it was checked."""
    found = any_pb2.Any.FromString(serialized)
    return (_CHECKED if found.type_url == _TYPE_URL else _PARSED).FromString(found.value)


def serialize(checked: Any) -> bytes:
    """The other way round."""
    content = checked.SerializeToString(deterministic=True)
    serialized: bytes = any_pb2.Any(type_url=_TYPE_URL, value=content).SerializeToString()
    return serialized


def children(expr: Any) -> Iterator[Any]:
    """The parts of a node, in the order in which they are written."""
    kind = expr.WhichOneof("kind")
    match kind:
        case "select":
            yield expr.select.operand
        case "call":
            if expr.call.HasField("target"):
                yield expr.call.target
            yield from expr.call.args
        case "list":
            yield from expr.list.elements
        case "struct":
            for entry in expr.struct.entries:
                yield from (entry.map_key, entry.value)
        case "comprehension":
            yield from (getattr(expr.comprehension, branch) for branch in _BRANCHES)


def nodes(expr: Any) -> Iterator[Any]:
    """All nodes of a tree, the root first."""
    yield expr
    for child in children(expr):
        yield from nodes(child)


def inlined(expr: Any) -> Any:
    """The same expression without ``cel.bind``: each use of a variable is its expression.

    The library evaluates the expression of a variable when it is used first, and can confuse it with the variable of a macro that
    ended early. Each macro gets its own variables, so no variable of an inlined expression changes its meaning.
    """
    return _Inlined(max(node.id for node in nodes(expr))).copy(expr, {})


class _Inlined:
    def __init__(self, last: int) -> None:
        """``last``: the largest id; the library has data about the nodes up to it."""
        self._last = last
        self._nodes = 0

    def copy(self, expr: Any, replacements: Mapping[str, Any]) -> Any:
        """A copy with new ids, in which ``replacements`` replaces variables."""
        if expr.WhichOneof("kind") == "ident" and expr.ident.name in replacements:
            return self.copy(replacements[expr.ident.name], {})
        copied = type(expr)()
        copied.CopyFrom(expr)
        self._nodes += 1
        copied.id = self._last + self._nodes
        if self._nodes > _MOST_NODES:
            raise BadInput(
                "CEL: the expression is too large with its variables of cel.bind replaced"
            )
        if expr.WhichOneof("kind") == "comprehension":
            return self._macro(copied, replacements)
        for child in children(copied):
            child.CopyFrom(self.copy(child, replacements))
        return copied

    def _macro(self, copied: Any, replacements: Mapping[str, Any]) -> Any:
        macro = copied.comprehension
        begun = self.copy(macro.accu_init, replacements)
        if _is_bind(macro):
            return self.copy(macro.result, {**replacements, macro.accu_var: begun})
        own = type(copied)()
        own.ident.name = f"{macro.iter_var}_{copied.id}"
        within = {name: of for name, of in replacements.items() if name != macro.accu_var}
        within[macro.iter_var] = own
        macro.iter_range.CopyFrom(self.copy(macro.iter_range, replacements))
        macro.accu_init.CopyFrom(begun)
        for branch in (macro.loop_condition, macro.loop_step, macro.result):
            branch.CopyFrom(self.copy(branch, within))
        macro.iter_var = own.ident.name
        return copied


def _is_bind(macro: Any) -> bool:
    """It iterates over nothing."""
    return bool(
        macro.loop_condition.WhichOneof("kind") == "const"
        and macro.loop_condition.const.WhichOneof("value") == "boolean"
        and not macro.loop_condition.const.boolean
    )
