"""The types of the answers in ``queuectl/client/types.py``, written from the description of the API."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WRITTEN = ROOT / "queuectl" / "client" / "types.py"
_HEAD = '''"""The types of the API's answers: JSON objects. An answer can have more fields, which a newer server has added.

This file is written from docs/reference/openapi.json by ``python -m tests.api.renew_openapi``. Times are texts of RFC 3339. The value of
an enumeration is a ``str``, because a newer server can have more values.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class AnswerJson(TypedDict):
    """Base of the objects in answers."""
'''
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}

Schema = Mapping[str, Any]


def source(description: Schema) -> str:
    """The module, formatted."""
    schemas: Mapping[str, Schema] = description["components"]["schemas"]
    wanted = _of_answers(description, schemas)
    classes = [_class(name, schemas) for name in sorted(wanted) if _closed(schemas[name])]
    written = "\n\n".join([_HEAD, *classes])
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(WRITTEN), "-"]
    done = subprocess.run(
        command, input=written, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout


def _of_answers(description: Schema, schemas: Mapping[str, Schema]) -> set[str]:
    """The schemas to which an answer without an error refers, also by others."""
    answers = [
        response
        for operations in description["paths"].values()
        for operation in operations.values()
        for status, response in operation["responses"].items()
        if int(status) < 300
    ]
    names: set[str] = set()
    waiting = list(_references(answers))
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += _references(schemas[name])
    return names


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def _closed(schema: Schema) -> bool:
    """Whether it is an object whose fields are all described."""
    return schema.get("type") == "object" and schema.get("additionalProperties") is not True


def type_name(schema: str) -> str:
    """The name of the type of a schema: ``WorkloadJson`` for ``WorkloadView``."""
    return f"{schema.removesuffix('View')}Json"


def _class(name: str, schemas: Mapping[str, Schema]) -> str:
    schema = schemas[name]
    lines = [f"class {type_name(name)}(AnswerJson):"]
    if "description" in schema:
        lines += [f"    {_docstring(schema['description'])}", ""]
    required = schema.get("required", ())
    for field, described in schema.get("properties", {}).items():
        annotation = _annotation(described, schemas)
        lines.append(
            f"    {field}: {annotation if field in required else f'NotRequired[{annotation}]'}"
        )
        if "description" in described:
            lines.append(f"    {_docstring(described['description'])}")
    return "\n".join(lines)


def _docstring(text: str) -> str:
    return (
        json.dumps(" ".join(text.split()), ensure_ascii=False).replace('"', '"""', 1)[:-1] + '"""'
    )


def _annotation(schema: Schema, schemas: Mapping[str, Schema]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if "enum" in schemas[name]:
            return _of_enumeration(schemas[name]["enum"])
        return type_name(name) if _closed(schemas[name]) else "dict[str, Any]"
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_annotation(each, schemas) for each in schema["anyOf"]))
    if "enum" in schema:
        return _of_enumeration(schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list[{_annotation(schema.get('items', {}), schemas)}]"
        case "object":
            inner = schema.get("additionalProperties")
            return f"dict[str, {_annotation(inner, schemas) if isinstance(inner, dict) else 'Any'}]"
        case str(plain):
            return _PLAIN[plain]
        case _:
            return "Any"


def _of_enumeration(values: list[Any]) -> str:
    return "str | None" if None in values else "str"
