"""Where CEL in Kubernetes differs from the library: the syntax tree of a selector is changed before it is evaluated."""

from __future__ import annotations

from typing import Any, Final

from queuectl.cel import checked
from queuectl.cel.library_types import AMONG, EQUAL, NUMBER, QUANTITY, UNEQUAL, WITHIN
from queuectl.domain.errors import BadInput
from queuectl.domain.words import shortened

_BOOLEAN: Final = 1
_TO_NUMBER: Final = frozenset({"int", "uint", "double"})
_UNPACKING: Final = frozenset({"orValue", "value", "hasValue"})
_LOOKUPS: Final = frozenset({"_[_]", "_[?_]", "_?._"})
_TYPED: Final = _LOOKUPS | {"@in", "size", "_==_", "_!=_", "_?_:_"}
"""Functions that keep the type of a map of domains, or do not return it."""
COMPARISONS: Final = {"_==_": EQUAL, "_!=_": UNEQUAL, "@in": WITHIN}
ADDED: Final = (*COMPARISONS.values(), AMONG, NUMBER)
"""The functions that :func:`adapted` calls."""


def adapted(tree: Any, source: str) -> Any:
    """The expression of a checked tree, changed so that its value matches Kubernetes.

    Raises:
        BadInput: it uses something for which that is not possible.
    """
    _check_result(tree, source)
    _check_optionals(tree, source)
    _Adapted(tree, source).adapt(tree.expr)
    return checked.inlined(tree.expr)


def attributes_read(tree: Any) -> frozenset[str] | None:
    """The attributes, without their domains, that a checked expression can read; None = it can read all."""
    names: set[str] = set()
    return frozenset(names) if _reads(checked.inlined(tree.expr), names) else None


def _reads(expr: Any, names: set[str]) -> bool:
    """Adds the attributes that an expression reads; False if it uses attributes in another way than by a name in it."""
    looked_up = _looked_up(expr)
    if looked_up is not None:
        within = _looked_up(looked_up[0])
        if within is not None and _is_attributes(within[0]):
            names.add(looked_up[1])
            return True
    return not _is_attributes(expr) and all(_reads(c, names) for c in checked.children(expr))


def _looked_up(expr: Any) -> tuple[Any, str] | None:
    """The map and the key of a lookup by a constant."""
    kind = expr.WhichOneof("kind")
    if kind == "select":
        return expr.select.operand, str(expr.select.field)
    if kind == "call" and expr.call.function in _LOOKUPS:
        key = expr.call.args[1]
        if key.WhichOneof("kind") == "const" and key.const.WhichOneof("value") == "text":
            return expr.call.args[0], str(key.const.text)
    return None


def _is_attributes(expr: Any) -> bool:
    return bool(expr.WhichOneof("kind") == "ident" and expr.ident.name == "device.attributes")


def refuse_presence(tree: Any, source: str) -> None:
    """The variables of the environment have names such as ``device.driver``, so the library would take it for the variable."""
    for node in checked.nodes(tree.expr):
        if node.WhichOneof("kind") == "select" and node.select.test_only:
            operand = node.select.operand
            if operand.WhichOneof("kind") == "ident" and operand.ident.name == "device":
                raise BadInput(
                    f"CEL: has(device.{node.select.field}) is not supported: {shortened(source)}"
                )


def _check_result(tree: Any, source: str) -> None:
    result = tree.types[tree.expr.id]
    kind = result.WhichOneof("value")
    if kind != "dyn" and not (kind == "primitive" and result.primitive == _BOOLEAN):
        raise BadInput(f"CEL: must evaluate to bool or the unknown type: {shortened(source)}")


def _check_optionals(tree: Any, source: str) -> None:
    """The library ends the process if a function gets an optional value, so each one must be unpacked where it is used.

    A lookup in an optional value returns an optional value, although the checker can give it another type.
    """
    untyped = set[int]()  # nodes that are optional, and have another type
    for node in reversed(list(checked.nodes(tree.expr))):  # the parts of a node before the node
        typed = _is_optional(tree, node)
        for child in checked.children(node):
            if child.id in untyped:
                refused = not _unpacks(node, child) or node.WhichOneof("kind") == "comprehension"
            else:
                refused = not typed and _is_optional(tree, child) and not _unpacks(node, child)
            if refused:
                raise BadInput(
                    "CEL: an optional value is used as a value, which is not supported; use orValue() or hasValue(): "
                    f"{shortened(source)}"
                )
        operand = _operand(node)
        if operand is not None and not typed:
            within = operand.id in untyped or _is_optional(tree, operand)
            if within or (node.WhichOneof("kind") == "call" and node.call.function != "_[_]"):
                untyped.add(node.id)
    if tree.expr.id in untyped:
        raise BadInput(f"CEL: the value is optional: {shortened(source)}")


def _operand(expr: Any) -> Any | None:
    """The value in which a lookup looks; None for other nodes."""
    match expr.WhichOneof("kind"):
        case "select" if not expr.select.test_only:
            return expr.select.operand
        case "call" if expr.call.function in _LOOKUPS:
            return expr.call.args[0]
        case _:
            return None


def _is_optional(tree: Any, expr: Any) -> bool:
    known = tree.types.get(expr.id)
    return bool(known is not None and known.abstract.name == "optional_type")


def _unpacks(expr: Any, optional: Any) -> bool:
    """Whether an expression takes the value out of an optional, or only names it."""
    match expr.WhichOneof("kind"):
        case "select":
            return True
        case "call":
            call = expr.call
            if call.HasField("target"):
                return call.function in _UNPACKING and call.target.id == optional.id
            return call.function in _LOOKUPS and call.args[0].id == optional.id
        case "comprehension":
            macro = expr.comprehension
            return optional.id in (macro.accu_init.id, macro.loop_step.id)
        case _:
            return False


class _Adapted:
    """Changes a tree so that its value matches Kubernetes.

    A lookup in a map of domains finds an empty map where the domain is absent, and a quantity or version is compared with
    nothing but its own kind.
    """

    def __init__(self, tree: Any, source: str) -> None:
        self._types = tree.types
        self._source = source
        self._next: int = max(node.id for node in checked.nodes(tree.expr))

    def adapt(self, expr: Any) -> None:
        """Change this node and all below it."""
        self._refuse_escape(expr)
        for child in list(checked.children(expr)):
            self.adapt(child)
        kind = expr.WhichOneof("kind")
        if kind == "select" and self._of_domains(expr.select.operand):
            self._select(expr)
        elif kind == "call":
            self._call(expr)

    def _select(self, expr: Any) -> None:
        if expr.select.test_only:
            expr.const.boolean = True  # a domain that is absent is an empty map
            return
        operand, key = type(expr)(), type(expr)(id=self._id())
        operand.CopyFrom(expr.select.operand)
        key.const.text = expr.select.field
        self._found(expr, operand, key)

    def _call(self, expr: Any) -> None:
        call = expr.call
        if call.function in _LOOKUPS and self._of_domains(call.args[0]):
            optional = call.function != "_[_]"
            operand, key = type(expr)(), type(expr)()
            operand.CopyFrom(call.args[0])
            key.CopyFrom(call.args[1])
            self._found(expr, operand, key)
            if optional:
                found = type(expr)(id=self._id(), call=expr.call)
                expr.call.Clear()
                expr.call.function = "optional.of"
                expr.call.args.append(found)
        elif call.function == "@in" and _is_empty_list(call.args[1]):
            expr.const.boolean = False  # Kubernetes does not evaluate the item
        elif (
            call.function in _TO_NUMBER
            and self._types[call.args[0].id].WhichOneof("value") == "dyn"
        ):
            number = type(expr)(id=self._id())
            number.call.function = NUMBER.name
            number.call.args.append(call.args[0])
            call.args[0].CopyFrom(number)
        elif call.function in COMPARISONS and self._can_be_kubernetes(call.args[0]):
            constants = call.function == "@in" and _is_constant_list(call.args[1])
            call.function = (AMONG if constants else COMPARISONS[call.function]).name

    def _found(self, expr: Any, operand: Any, key: Any) -> None:
        """``operand[?key].orValue({})``."""
        expr.call.Clear()
        expr.call.function = "orValue"
        target = expr.call.target
        target.id = self._id()
        target.call.function = "_[?_]"
        target.call.args.extend([operand, key])
        empty = expr.call.args.add(id=self._id())
        empty.struct.SetInParent()

    def _refuse_escape(self, expr: Any) -> None:
        """A map of domains that loses its type would also lose its empty domains."""
        kind = expr.WhichOneof("kind")
        if kind == "list" or kind == "struct":
            escapes = any(map(self._of_domains, (expr, *checked.children(expr))))
        else:
            escapes = (
                kind == "call"
                and expr.call.function not in _TYPED
                and any(map(self._of_domains, checked.children(expr)))
            )
        if escapes:
            raise BadInput(
                "CEL: device.attributes or device.capacity is used as a value other than for a lookup,"
                f" which is not supported: {shortened(self._source)}"
            )

    def _of_domains(self, expr: Any) -> bool:
        known = self._types.get(expr.id)
        if known is None or known.WhichOneof("value") != "map":
            return False
        inner = known.map.value
        if inner.WhichOneof("value") != "map":
            return False
        value = inner.map.value
        return bool(value.WhichOneof("value") == "dyn" or value.message == QUANTITY)

    def _can_be_kubernetes(self, expr: Any) -> bool:
        """Whether the value can be a quantity or a version."""
        kind: str = self._types[expr.id].WhichOneof("value")
        return kind in ("dyn", "message")

    def _id(self) -> int:
        self._next += 1
        return self._next


def _is_empty_list(expr: Any) -> bool:
    return bool(expr.WhichOneof("kind") == "list" and not expr.list.elements)


def _is_constant_list(expr: Any) -> bool:
    elements = expr.list.elements if expr.WhichOneof("kind") == "list" else ()
    return bool(elements) and all(each.WhichOneof("kind") == "const" for each in elements)
