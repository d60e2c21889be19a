"""The fields of parameters, made once in a process and not once for each application.

About a thousand tests make their own application. Two thirds of the time that this takes, 0.07 s of 0.1 s, go into the validators
of parameters, most of which many routes have in common. A server makes one application, so this is here and not in the product.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import fastapi.dependencies.utils
import fastapi.routing
from fastapi.utils import create_model_field

_FIELDS: Final[dict[Hashable, Any]] = {}


def share() -> None:
    """Make FastAPI share equal fields between applications, until the process ends."""
    for module in (fastapi.dependencies.utils, fastapi.routing):
        assert hasattr(module, create_model_field.__name__)
        setattr(module, create_model_field.__name__, _field)


def _field(name: str, type_: Any, **options: Any) -> Any:
    """Fields with the same name, type and options are equal; nothing changes one after it is made."""
    described = tuple((key, repr(option)) for key, option in sorted(options.items()))
    try:
        key = (name, hash(type_), repr(type_), described)
    except TypeError:  # such as a literal of lists
        return create_model_field(name, type_, **options)
    if key not in _FIELDS:
        _FIELDS[key] = create_model_field(name, type_, **options)
    return _FIELDS[key]
