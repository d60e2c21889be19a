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
from queuectl.cel.cost import Costs, Size
from queuectl.cel.expression import (
    CompiledExpression,
    EvaluationError,
    Function,
    compiled,
    declared,
    implemented,
)
from queuectl.cel.kubernetes import KUBERNETES
from queuectl.cel.library_types import POOL, QUANTITY, evaluation, published, quantity, same, semver
from queuectl.devices.adaptation import ADDED, adapted, attributes_read, refuse_presence
from queuectl.domain.devices import MOST_SELECTOR_BYTES, AttributeValue, DeviceKind, Scalar, Version
from queuectl.domain.errors import BadInput
from queuectl.domain.semver import read_semver

MOST_OPERATIONS: Final = 100_000
"""Operations to evaluate a selector once, and to evaluate all selectors of a request once."""


_T: Final = cel.Type
_MOST_VALUES: Final = 48  # of a list in a ResourceSlice
_VARIABLES: Final = {
    "device.driver": _T.STRING,
    "device.attributes": _T.Map(_T.STRING, _T.Map(_T.STRING, _T.DYN)),
    "device.capacity": _T.Map(_T.STRING, _T.Map(_T.STRING, cel.Type(QUANTITY))),
    "device.allowMultipleAllocations": _T.BOOL,
}


def _includes(target: Any, element: Any) -> bool:
    values = target if isinstance(target, list) else [target]
    if len(values) > _MOST_VALUES:
        raise ValueError(
            f"'includes' function cannot be applied to lists longer than {_MOST_VALUES} values"
        )
    return any(same(each, element) for each in values)


_FUNCTIONS: Final = (
    *KUBERNETES,
    Function("includes", [(_T.BOOL, [_T.DYN, _T.DYN])], _includes),
)


# The sizes of a large device. Its driver decides them; a user decides only what the expression does with them.
_TEXT: Final = Size(64)
_COSTS: Final = Costs(
    {
        "device.driver": _TEXT,
        "device.attributes": Size(8, Size(32, Size(16, _TEXT))),
        "device.capacity": Size(8, Size(32, _TEXT)),
    },
    {function.name for function in (*_FUNCTIONS, *ADDED)},
)


def _environment(functions: cel.CelExtension) -> cel.Env:
    libraries = [ext_optional.ExtOptional(), ext_strings.ExtStrings(), ext_bindings.ExtBindings()]
    return cel.NewEnv(POOL, variables=_VARIABLES, extensions=[*libraries, functions])


_CHECKING: Final = _environment(declared(_FUNCTIONS))
_EVALUATING: Final = _environment(implemented((*_FUNCTIONS, *ADDED)))


class Selector:
    """One compiled selector.

    Attributes:
        attributes: the names, without domains, of the attributes that it can read; None = it can read all.
        operations: of one evaluation, at most.
    """

    def __init__(self, source: str) -> None:
        """Compile it.

        Raises:
            BadInput: it is not valid, it uses something that is not available here, or it takes too many operations.
        """
        if len(source.encode()) > MOST_SELECTOR_BYTES:
            raise BadInput(f"CEL: the expression has more than {MOST_SELECTOR_BYTES} bytes")
        untyped = compiled(_CHECKING, source, types=False)
        refuse_presence(checked.parse(untyped.serialize()), source)
        tree = checked.parse(compiled(_CHECKING, source).serialize())
        self.attributes = attributes_read(tree)
        tree.expr.CopyFrom(adapted(tree, source))
        self.operations = _COSTS.operations(tree.expr)
        if self.operations > MOST_OPERATIONS:
            text = f"an evaluation can take {self.operations} operations, and at most {MOST_OPERATIONS} are supported"
            raise BadInput(f"CEL: {text}: {source if len(source) < 100 else f'{source[:100]}…'}")
        self._expression = CompiledExpression(_EVALUATING.deserialize(checked.serialize(tree)))

    def matches(self, kind: DeviceKind) -> bool:
        """Whether devices of this kind fulfill it.

        Raises:
            EvaluationError: its value is an error, or no boolean. kube-scheduler then fails the pod on this node.
        """
        with evaluation():
            value = self._expression.evaluate(_data(kind))
        if not isinstance(value, bool):
            raise EvaluationError(f"the value is not a boolean but {type(value).__name__}")
        return value


def selector(source: str) -> Selector:
    """The compiled selector; equal ones are compiled once.

    Raises:
        BadInput: as :class:`Selector`.
    """
    found = _compiled(source)
    if isinstance(found, str):
        raise BadInput(found)
    return found


MOST_COMPILED: Final = 1 << 14
"""More than the selectors of a plan and of the DeviceClasses: otherwise each use of one would compile it again."""


@lru_cache(maxsize=MOST_COMPILED)
def _compiled(source: str) -> Selector | str:
    try:
        return Selector(source)
    except BadInput as error:
        return str(error)


@lru_cache(maxsize=1 << 17)
def outcome(source: str, kind: DeviceKind) -> bool | str:
    """Whether devices of this kind fulfill a selector, or the error of its evaluation. Kept per selector and kind.

    Raises:
        BadInput: as :class:`Selector`.
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


def _value(attribute: AttributeValue) -> Any:
    if isinstance(attribute, tuple):
        return [_scalar(each) for each in attribute]
    return _scalar(attribute)


def _scalar(scalar: Scalar) -> Any:
    return semver(read_semver(scalar.text)) if isinstance(scalar, Version) else scalar
