"""Checks the names of the code: ``python -m tests.names``.

A public name, a parameter, and a local value that lives longer than ``LINES`` lines state a meaning: a word of ``EMPTY`` fits any
value. The spelling is American. The docstring of a class begins with a noun or a verb that states what the class is or does. It prints a
line for each finding, and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2] / "queuectl"
LINES: Final = 10
# fmt: off
EMPTY: Final = frozenset({
    "asked", "data", "done", "found", "given", "info", "item", "items", "kept", "known", "made",
    "obj", "one", "ones", "other", "others", "res", "rest", "result", "results", "ret", "seen",
    "taken", "temp", "these", "thing", "things", "this", "those", "tmp", "val", "value",
    "values", "wanted",
})
# fmt: on
BRITISH: Final = re.compile(
    r"(?:cancell|labell|modell|signall)(?:ed|ing|er)|fulfil(?!l)|behaviour|colour|favour|honour|neighbour"
    r"|judgement|centre|licence|grey|(?:organ|normal|serial|minim|maxim|optim|summar|anonym|initial)is(?:e|ing|ation)"
)
API: Final = frozenset(
    {
        "View",
        "ReportView",
        "BaseModel",
        "Struct",
        "Wire",
        "AnswerJson",
        "Strict",
        "ObjectHead",
        "DescriptionPart",
    }
)
"""Bases of classes whose fields have their names from Kubernetes, from Prometheus or from REST."""
FIXED: Final = frozenset(
    {
        "BoundedProtocol.data_received.data",  # asyncio
        "_Beginning.data_received.data",  # a protocol of the event loop
        "CommandState.DONE",  # REST, as all states of commands
        "DONE",
        *(
            f"{kind}.value" for kind in ("Taint", "NodeTaint", "Toleration", "DeviceTaint")
        ),  # Kubernetes
        *(f"{kind}.value" for kind in ("DeviceToleration", "PriorityClassRecord")),
        "Requirement.values",
        "AllowPreemption.value",
        "_Typed._coerce_value.value",  # typer
        "FeedLine.data",  # server-sent events
        "StreamEvent.data",
    }
)
"""Other names that a protocol or a framework fixes."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Finding:
    """A name or a docstring without a meaning. ``name`` begins with the class and the function that it is in."""

    path: str
    line: int
    kind: str
    name: str

    def __str__(self) -> str:
        return f"queuectl/{self.path}:{self.line}: {self.kind} {self.name}"


def _parameters(function: _Function | ast.Lambda) -> Iterator[ast.arg]:
    signature = function.args
    yield from (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)
    yield from filter(None, (signature.vararg, signature.kwarg))


def _uses(tree: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[tuple[str, int, bool]]:
    """The names in a function, with the line and whether it binds them. Comprehensions and lambdas hide their own names."""
    for node in ast.iter_child_nodes(tree):
        inner = hidden
        match node:
            case ast.Name(id=name) if name not in hidden:
                yield name, node.lineno, isinstance(node.ctx, ast.Store)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno, True
            case ast.Lambda():
                inner = hidden | {parameter.arg for parameter in _parameters(node)}
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                targets = (part for loop in node.generators for part in ast.walk(loop.target))
                inner = hidden | {part.id for part in targets if isinstance(part, ast.Name)}
        yield from _uses(node, inner)


def _long_lived(function: _Function) -> Iterator[tuple[str, int]]:
    """The names that live longer than ``LINES`` lines, from the first binding to the last use, and the lines of the bindings."""
    first, last = dict[str, int](), dict[str, int]()
    for name, line, binds in _uses(function):
        if binds:
            first.setdefault(name, line)
        last[name] = max(line, last.get(name, 0))
    return ((name, line) for name, line in first.items() if last[name] - line > LINES)


class _Names(ast.NodeVisitor):
    """Collects the names that must have a meaning: kind, line, and name after those of its class and function."""

    def __init__(self) -> None:
        self.names: list[tuple[str, int, str]] = []
        self._outer: list[ast.ClassDef | _Function] = []

    def _add(self, kind: str, line: int, name: str) -> None:
        self.names.append((kind, line, ".".join((*(node.name for node in self._outer), name))))

    def _add_public(self, kind: str, line: int, name: str) -> None:
        if not any(part.startswith("_") for part in (*(node.name for node in self._outer), name)):
            self._add(kind, line, name)

    def _enter(self, node: ast.ClassDef | _Function) -> None:
        self._outer.append(node)
        self.generic_visit(node)
        self._outer.pop()

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.ClassDef(name=name):
                self._add_public("class", node.lineno, name)
                self._enter(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._add_function(node)
                self._enter(node)
            case ast.Name(id=name, ctx=ast.Store()):
                if not self._in_function() and not self._is_api():
                    self._add_public("attribute" if self._outer else "constant", node.lineno, name)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                pass  # it has its own names
            case _:
                self.generic_visit(node)

    def _add_function(self, node: _Function) -> None:
        if not self._in_function():
            self._add_public("function", node.lineno, node.name)
        if node.name != "__init__" and node.name.startswith("__"):
            return  # Python fixes its parameters
        self._outer.append(node)
        for parameter in _parameters(node):
            self._add("parameter", parameter.lineno, parameter.arg)
        for name, line in _long_lived(node):
            self._add("local", line, name)
        self._outer.pop()

    def _in_function(self) -> bool:
        return any(isinstance(node, _Function) for node in self._outer)

    def _is_api(self) -> bool:
        bases = (
            self._outer[-1].bases
            if self._outer and isinstance(self._outer[-1], ast.ClassDef)
            else []
        )
        return any(ast.unparse(base).rpartition(".")[2] in API for base in bases)


def findings(path: Path) -> list[Finding]:
    """The names of a module that have no meaning, its own among them, and its classes whose docstrings have none."""
    module = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text())
    visitor = _Names()
    visitor.visit(tree)
    names = [
        Finding(module, line, kind, name)
        for kind, line, name in [("module", 1, path.stem), *visitor.names]
        if _is_wrong(name.rpartition(".")[2].strip("_").lower()) and name not in FIXED
    ]
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return names + [
        Finding(module, node.lineno, "docstring of class", node.name)
        for node in classes
        if (ast.get_docstring(node) or "").startswith("Of ")
    ]


def _is_wrong(word: str) -> bool:
    return word in EMPTY or BRITISH.search(word) is not None


def main() -> int:
    """Check everything."""
    names = [finding for path in sorted(ROOT.rglob("*.py")) for finding in findings(path)]
    print("\n".join(map(str, names)), end="\n" * bool(names))
    print(f"names: {len(names)} findings", file=sys.stderr)
    return int(bool(names))


if __name__ == "__main__":
    sys.exit(main())
