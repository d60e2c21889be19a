"""CEL selectors of devices, as kube-scheduler evaluates them.

A selector sees one variable, ``device``, with ``driver``, ``attributes``, ``capacity`` and ``allowMultipleAllocations``. A domain
without attributes or capacities is an empty map; an attribute that is missing is an error, and kube-scheduler then fails the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
from google.protobuf.message import Message

from queuectl.cel import checked
from queuectl.cel.expression import EvaluationError, Expression, compiled
from queuectl.cel.functions import (
    AMONG,
    EQUAL,
    KUBERNETES,
    NUMBER,
    UNEQUAL,
    WITHIN,
    Function,
    declared,
    implemented,
    same,
)
from queuectl.cel.values import POOL, QUANTITY, published, quantity, semver
from queuectl.domain.devices import AttributeValue, DeviceKind, Scalar, Version
from queuectl.domain.errors import BadInput
from queuectl.domain.semver import read_semver

_T: Final = cel.Type
_MOST_VALUES: Final = 48  # of a list in a ResourceSlice
_VARIABLES: Final = {
    "device.driver": _T.STRING,
    "device.attributes": _T.Map(_T.STRING, _T.Map(_T.STRING, _T.DYN)),
    "device.capacity": _T.Map(_T.STRING, _T.Map(_T.STRING, cel.Type(QUANTITY))),
    "device.allowMultipleAllocations": _T.BOOL,
}


def _includes(target: Any, item: Any) -> bool:
    values = target if isinstance(target, list) else [target]
    if len(values) > _MOST_VALUES:
        raise ValueError(
            f"'includes' function cannot be applied to lists longer than {_MOST_VALUES} values"
        )
    return any(same(each, item) for each in values)


_FUNCTIONS: Final = (
    *KUBERNETES,
    Function("includes", [(_T.BOOL, [_T.DYN, _T.DYN])], _includes),
)
_COMPARISONS: Final = {"_==_": EQUAL, "_!=_": UNEQUAL, "@in": WITHIN}


def _environment(functions: cel.CelExtension) -> cel.Env:
    libraries = [ext_optional.ExtOptional(), ext_strings.ExtStrings(), ext_bindings.ExtBindings()]
    return cel.NewEnv(POOL, variables=_VARIABLES, extensions=[*libraries, functions])


_CHECKING: Final = _environment(declared(_FUNCTIONS))
_EVALUATING: Final = _environment(implemented((*_FUNCTIONS, *_COMPARISONS.values(), AMONG, NUMBER)))


class Selector:
    """One compiled selector."""

    def __init__(self, source: str) -> None:
        """Compile it.

        Raises:
            BadInput: it is not valid, or it uses something that is not available here.
        """
        self.source = source
        _refuse_presence(
            checked.parse(compiled(_CHECKING, source, types=False).serialize()), source
        )
        tree = checked.parse(compiled(_CHECKING, source).serialize())
        _check_result(tree, source)
        _Adapted(tree, source).adapt(tree.expr)
        tree.expr.CopyFrom(checked.inlined(tree.expr))
        self._expression = Expression(_EVALUATING.deserialize(checked.serialize(tree)))

    def matches(self, kind: DeviceKind) -> bool:
        """Whether devices of this kind fulfil it.

        Raises:
            EvaluationError: its value is an error, or no boolean. kube-scheduler then fails the pod on this node.
        """
        value = self._expression.value(_data(kind))
        if not isinstance(value, bool):
            raise EvaluationError(f"the value is no boolean but {type(value).__name__}")
        return value


@lru_cache(maxsize=4096)
def selector(source: str) -> Selector:
    """The compiled selector; equal ones are compiled once.

    Raises:
        BadInput: it is not valid, or it uses something that is not available here.
    """
    return Selector(source)


@lru_cache(maxsize=1 << 17)
def outcome(source: str, kind: DeviceKind) -> bool | str:
    """Whether devices of this kind fulfil a selector, or the error of its evaluation. Kept per selector and kind.

    Raises:
        BadInput: the selector is not valid, or it uses something that is not available here.
    """
    try:
        return selector(source).matches(kind)
    except EvaluationError as error:
        return str(error)


# ---- the device as data


@lru_cache(maxsize=1 << 14)
def _data(kind: DeviceKind) -> Mapping[str, Any]:
    attributes: dict[str, dict[str, Any]] = {}
    for name, value in kind.attributes:
        domain, _, plain = name.partition("/")
        attributes.setdefault(domain, {})[plain] = _value(value)
    capacity: dict[str, dict[str, Message]] = {}
    for name, amount in kind.capacity:
        domain, _, plain = name.rpartition("/")
        capacity.setdefault(domain or kind.driver, {})[plain] = quantity(published(amount))
    return {
        "device.driver": kind.driver,
        "device.attributes": attributes,
        "device.capacity": capacity,
        "device.allowMultipleAllocations": kind.shared,
    }


def _value(value: AttributeValue) -> Any:
    if isinstance(value, tuple):
        return [_scalar(each) for each in value]
    return _scalar(value)


def _scalar(value: Scalar) -> Any:
    return semver(read_semver(value.text)) if isinstance(value, Version) else value


# ---- where Kubernetes differs from the library


def _refuse_presence(tree: Any, source: str) -> None:
    """The variables of the environment have names such as ``device.driver``, so the library would take it for the variable."""
    for node in checked.nodes(tree.expr):
        if node.WhichOneof("kind") == "select" and node.select.test_only:
            operand = node.select.operand
            if operand.WhichOneof("kind") == "ident" and operand.ident.name == "device":
                raise BadInput(f"CEL: has(device.{node.select.field}) is not supported: {source}")


def _check_result(tree: Any, source: str) -> None:
    result = tree.types[tree.expr.id]
    kind = result.WhichOneof("value")
    if kind != "dyn" and not (kind == "primitive" and result.primitive == _BOOLEAN):
        raise BadInput(f"CEL: must evaluate to bool or the unknown type: {source}")


_BOOLEAN: Final = 1
_TO_NUMBER: Final = frozenset({"int", "uint", "double"})
_LOOKUPS: Final = frozenset({"_[_]", "_[?_]", "_?._"})
_TYPED: Final = _LOOKUPS | {"@in", "size", "_==_", "_!=_", "_?_:_"}
"""Functions that keep the type of a map of domains, or do not return it."""


class _Adapted:
    """Changes a tree so that its value is that of Kubernetes.

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
        elif call.function in _COMPARISONS and self._can_be_kubernetes(call.args[0]):
            constants = call.function == "@in" and _is_constant_list(call.args[1])
            call.function = (AMONG if constants else _COMPARISONS[call.function]).name

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
        """A map of domains that loses its type would lose its empty domains, too."""
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
                f" which is not supported: {self._source}"
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
