"""The reasons for which fields are refused: each error that a model or a parameter can have has a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from queuectl.api.app import create_app
from queuectl.control import settings
from queuectl.domain.requirements import SENTENCES, requirement
from queuectl.notify import receivers_file
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.support import FixedHealth
from tests.doubles.store import MemoryStore

LOADED: Final = (settings, receivers_file)  # the models of these modules are read too
FOLLOWS: Final = (
    "default_factory_not_called"  # the settings leave it out: it follows from another error
)
WRONG: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, 10**400, -(10**400), float("nan"), "", "x", " ", "\ud800", "x" * 40_000,
    "2026-13-01", "9" * 5000, [], [0], ["x"], [{}] * 5001, {}, {"x": 0}, {1: 0}, "2026", "2026-01-01T25:00:00Z",
)  # fmt: skip


def models(base: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        if model.__module__.startswith("queuectl."):
            yield model
        yield from models(model)


def parameters(dependant: Dependant) -> Iterator[Any]:
    yield from dependant.path_params + dependant.query_params + dependant.header_params
    for below in dependant.dependencies:
        yield from parameters(below)


def errors(validate: Callable[[Any], object], text: Any) -> list[Any]:
    try:
        validate(text)
    except ValidationError as error:
        return list(error.errors(include_url=False, include_input=False))
    return []


def all_errors() -> Iterator[tuple[str, Any]]:
    for model in models():
        names = {field.alias or name for name, field in model.model_fields.items()}
        for name in (*names, "unknownField"):
            for text in WRONG:
                for error in errors(model.model_validate, {name: text}):
                    yield f"{model.__qualname__}.{name}", error
        for error in errors(model.model_validate, ["no object"]):
            yield model.__qualname__, error
    app = create_app(MemoryStore(), FixedHealth(), MetricsRecorder().registry)
    for route in app.routes:
        if isinstance(route, APIRoute):
            for field in parameters(route.dependant):
                for text in WRONG:
                    for error in errors(field._type_adapter.validate_python, text):
                        yield f"{route.path} {field.name}", error


def test_each_error_of_a_field_has_a_sentence() -> None:
    seen, without = set(), set()
    for place, error in all_errors():
        seen.add(error["type"])
        if error["type"] not in SENTENCES and error["type"] != FOLLOWS:
            without.add((error["type"], place, error["msg"]))
        text = requirement(error)
        assert "Input should" not in text, (place, text)
    assert not without, sorted(without)[:20]
    assert seen >= {"missing", "extra_forbidden", "string_type", "enum", "too_long", "value_error"}
