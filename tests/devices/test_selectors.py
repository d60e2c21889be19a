"""CEL selectors, against values that kube-scheduler 1.36 gave for the same expressions and devices."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_expr_python import cel

from queuectl.cel.expression import CompiledExpression, EvaluationError, compiled
from queuectl.devices.selectors import outcome, selector
from queuectl.domain.devices import DeviceKind
from queuectl.domain.errors import BadInput
from tests.fuzz.selectors import kind_of
from tests.support.work import lines_run

FACTS = Path(__file__).parents[1] / "fixtures" / "device_selectors.yaml"


def _groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(FACTS.read_text())
    return groups


def _cases(*outcomes: str) -> list[Any]:
    return [
        pytest.param(group, expression, name, id=f"{group['name']}-{name}-{i}")
        for group in _groups()
        for name in outcomes
        for i, expression in enumerate(group.get(name, ()))
    ]


@pytest.mark.parametrize(("group", "expression", "expected"), _cases("true", "false"))
def test_a_selector_has_the_value_that_kube_scheduler_finds(group, expression, expected):
    assert outcome(expression, kind_of(group)) is (expected == "true"), expression


@pytest.mark.parametrize(("group", "expression", "expected"), _cases("error"))
def test_an_evaluation_that_fails_in_kube_scheduler_is_an_error(group, expression, expected):
    found = outcome(expression, kind_of(group))
    assert isinstance(found, str), (expression, found)
    assert found


@pytest.mark.parametrize(("group", "expression", "expected"), _cases("invalid", "refused"))
def test_an_expression_that_is_invalid_or_not_supported_is_refused(group, expression, expected):
    with pytest.raises(BadInput, match=r"^CEL: ") as refused:
        selector(expression)
    assert "\n" not in str(refused.value)


def test_the_reason_of_a_refusal_names_the_function_and_the_expression():
    with pytest.raises(BadInput) as refused:
        selector("[2, 1].sort() == [1, 2]")
    assert str(refused.value) == "CEL: undeclared reference to 'sort': [2, 1].sort() == [1, 2]"


def test_an_attribute_with_the_value_true_differs_from_one_with_the_value_1():
    truth = DeviceKind("d.example", (("d.example/a", True),))
    number = DeviceKind("d.example", (("d.example/a", 1),))
    assert truth != number
    source = 'device.attributes["d.example"].a == 1'
    assert [outcome(source, kind) for kind in (truth, number)] == [False, True]


@pytest.mark.parametrize(
    ("amount", "integral"), [(80 << 30, True), (99 << 40, True), (100 << 40, False)]
)
def test_kube_scheduler_reads_large_binary_amounts_of_a_device_as_no_integer(amount, integral):
    kind = DeviceKind("d.example", capacity=(("memory", Fraction(amount)),))
    assert outcome('device.capacity["d.example"].memory.isInteger()', kind) is integral


NUMBERS = f"[{', '.join('0' * 100)}]"
LETTERS = '"' + "x" * 4_000 + '"'
COMPARED = "quantity('3').isGreaterThan(quantity('0'))"
EXPENSIVE = {
    "nested macros": f"{NUMBERS}.all(a, {NUMBERS}.all(b, a <= b))",
    "a call in nested macros": f"{NUMBERS}.all(a, {NUMBERS}.exists(b, {COMPARED}))",
    "many calls in a macro": f"{NUMBERS}.all(a, {' && '.join([COMPARED] * 100)})",
    "a variable that is used often": f"{NUMBERS}.all(a, cel.bind(s, {LETTERS}, {'+'.join('s' * 20)} != ''))",
    "a replacement": f"{LETTERS}.replace('x', {LETTERS}) == ''",
    "a replacement in a replacement": "'a'.replace('a', 'bbbbbbbbbb').replace('b', 'cccccccccc')" + ".replace('c', 'bbbbbbbbbb').replace('b', 'cccccccccc')" * 4 + " == ''",
    "each with each of two lists": f"sets.contains([{', '.join('1' * 1_000)}], [{', '.join('2' * 1_000)}])",
    "all characters": f"{LETTERS}.split('').all(c, c == 'x')",
    "all matches": f"{LETTERS}.findAll('x').size() > 0",
    "a macro over the result of a macro": f"{NUMBERS}.map(a, {NUMBERS}).all(l, l.all(b, b == 0))",
}  # fmt: skip


@pytest.mark.parametrize("source", EXPENSIVE.values(), ids=EXPENSIVE)
def test_an_expression_that_can_take_too_many_operations_is_refused_and_not_evaluated(source):
    with pytest.raises(BadInput, match=r"^CEL: an evaluation can take [0-9]+ operations, and at "):
        selector(source)


def test_a_selector_that_is_larger_than_the_api_server_allows_is_refused_unread():
    with pytest.raises(BadInput, match="more than 10240 bytes"):
        selector(f"device.driver != '{'x' * 10_240}'")


@pytest.mark.parametrize(("group", "expression", "expected"), _cases("true", "false", "error"))
def test_an_evaluation_takes_no_more_operations_than_the_bound_states(group, expression, expected):
    def lines(source: str) -> int:
        def evaluate() -> None:
            with suppress(EvaluationError):
                selector(source).matches(kind)

        evaluate()  # what is compiled and read is kept
        return lines_run(evaluate)

    kind = kind_of(group)
    assert lines(expression) - lines("true") <= selector(expression).operations


def test_the_bound_grows_with_each_list_of_nested_macros():
    def bound(number: int) -> int:
        items = f"[{', '.join('0' * number)}]"
        return selector(f"{items}.all(a, {items}.all(b, a <= b))").operations

    assert 3.5 < bound(60) / bound(30) < 4


def test_an_evaluation_that_the_library_ends_is_an_error():
    environment = cel.NewEnv(variables={"device.driver": cel.Type.STRING})
    found = CompiledExpression(compiled(environment, EXPENSIVE["nested macros"]))
    with pytest.raises(EvaluationError, match="Iteration budget exceeded"):
        found.evaluate({"device.driver": ""})


def test_a_selector_that_is_refused_is_compiled_once():
    for _ in range(3):
        with pytest.raises(BadInput):
            selector("device.refused_once == 1")
    compilation = partial(suppressed, partial(selector, "device.refused_once == 1"))
    assert lines_run(compilation) < 20


def suppressed(call) -> None:
    with suppress(BadInput):
        call()


@pytest.mark.parametrize(
    "source",
    [
        'optional.none().a.includes("b")',
        'device.attributes[?"other.example.com"].x.includes("b")',
        'dyn(optional.none()).includes("b")',
        '[optional.none(), 1][0].includes("b")',
        '[optional.of("a")].exists(one, one.includes("a"))',
        '{"a": optional.none()}["a"].includes("b")',
        "device.driver.includes(optional.none())",
        "optional.none() == optional.of(1)",
        'optional.none().a["b"].c[0] == "a"',
        'device.attributes[?"x"]["b"].c[0] == "a"',
        '(true ? optional.none().a : optional.none().b) == "a"',
        'cel.bind(x, optional.none().a.b, x.c == "a")',
        'optional.of(optional.none().a.b).orValue("a") == "b"',
    ],
)
def test_an_optional_value_reaches_no_function_that_would_end_the_process(source: str) -> None:
    with pytest.raises(BadInput, match="optional"):
        selector(source)


@pytest.mark.parametrize(
    "source",
    [
        'device.attributes["d"].?m.orValue("") == "x"',
        'device.attributes[?"d"].?m.hasValue()',
        'cel.bind(x, device.attributes["d"].?m, x.hasValue() && x.value() == "b")',
        'device.attributes["d"].?m.optMap(v, v == "a").orValue(false)',
        'device.attributes["d"].?m.or(optional.of("a")).orValue("b") == "b"',
    ],
)
def test_an_optional_value_can_be_unpacked(source: str) -> None:
    selector(source)
