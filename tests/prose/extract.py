"""Extracts the prose of source files, with each line at the number that it has in its source.

The linter reads Markdown. This module turns Python, HTML templates and YAML into Markdown of the same number of lines, so that a
finding in the extracted text names the line of the source.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Fragment:
    """A piece of prose; ``line`` is the 1-based line of its source on which it begins."""

    line: int
    text: str


_WORDS: Final = re.compile(r"[A-Za-z][a-z']+(?: [A-Za-z0-9{`'(][\w'`-]*[,:;]?){2,}")
"""Three words in a row. A string without them is an identifier, a pattern or a format."""
_NAMED: Final = re.compile(r"^( +)([a-z_]\w*(?:, [a-z_]\w*)*):(?=\s)", re.MULTILINE)
"""The names of attributes and arguments in a docstring: they are code."""
_DIRECTIVE: Final = re.compile(r"\s*(?:type:|noqa|pragma|ruff:|mypy:|fmt:|!/)")
_CODE: Final = re.compile(
    r"\A\t|\w\|\w|\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|FROM|WHERE)\b"
)


def comments(source: str) -> Iterator[Fragment]:
    """Comments, without directives to tools."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("#")
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(text):
            yield Fragment(token.start[0], text.strip())


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def python(source: str) -> Iterator[Iterator[Fragment]]:
    """The docstrings, the strings and the statements that the names of tests make, each kind apart."""
    nodes = list(ast.walk(ast.parse(source)))
    documented = [
        node.value for node in nodes if isinstance(node, ast.Expr) and _is_text(node.value)
    ]
    yield comments(source)
    yield (
        Fragment(node.lineno, _NAMED.sub(r"\1``\2``:", ast.literal_eval(node)))
        for node in documented
    )
    yield _strings(nodes, {id(node) for node in documented})
    yield (
        Fragment(node.lineno, node.name.removeprefix("test_").replace("_", " ") + ".")
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def _strings(nodes: Sequence[ast.AST], skipped: set[int]) -> Iterator[Fragment]:
    """String literals that hold prose. A replacement field becomes code."""
    for node in nodes:
        match node:
            case ast.JoinedStr():
                skipped |= {id(part) for part in node.values}
                parts = [p.value if isinstance(p, ast.Constant) else "`x`" for p in node.values]
                text = "".join(map(str, parts))
            case ast.Constant(value=str(text)):
                pass
            case _:
                continue
        if id(node) not in skipped and _WORDS.search(text) and not _CODE.search(text):
            yield Fragment(node.lineno, text)


_TEMPLATE: Final = re.compile(
    r"\{#.*?#\}|\{[{%].*?[%}]\}|<(?:script|style)\b.*?</(?:script|style)>", re.DOTALL
)
_SHOWN: Final = re.compile(r"""\b(?:aria-label|placeholder|title|alt|content)="([^"]*)\"""")
_TAG: Final = re.compile(r"<[^>]*>", re.DOTALL)


def template(source: str) -> Iterator[Iterator[Fragment]]:
    """The text of a page: the text between tags, and the attributes that a reader sees or hears."""
    yield _page(source)


def _page(source: str) -> Iterator[Fragment]:
    quiet = _TEMPLATE.sub(lambda found: "`x`" + "\n" * found[0].count("\n"), source)
    for number, line in enumerate(quiet.splitlines(), 1):
        for shown in _SHOWN.findall(line):
            yield Fragment(number, shown)
    for number, line in enumerate(
        _TAG.sub(lambda f: " | " + "\n" * f[0].count("\n"), quiet).splitlines(), 1
    ):
        for part in line.split("|"):
            yield Fragment(number, part)


_YAML: Final = re.compile(
    r"(?:^|\s)#\s?(.*)|(?:summary|description|message|messageExpression):\s*(.*)"
)


def yaml(source: str) -> Iterator[Iterator[Fragment]]:
    """Comments, and the values of keys that hold prose."""
    found = ((number, _YAML.search(line)) for number, line in enumerate(source.splitlines(), 1))
    yield (Fragment(number, text[1] or text[2] or "") for number, text in found if text)


READERS: Final[Mapping[str, Callable[[str], Iterator[Iterator[Fragment]]]]] = {
    ".py": python,
    ".html": template,
    ".yaml": yaml,
}
"""The reader of each kind of file. It yields each kind of text apart: a comment and the string alongside it are not one sentence."""

_FIELDS: Final = re.compile(r"(?:`x`){2,}")
"""Replacement fields in a row: their backticks would enclose the text between two such rows."""
_MARKUP: Final = str.maketrans(
    {"*": " ", "_": " ", "#": " ", "<": " ", ">": " ", "[": " ", "]": " ", "|": " "}
)


def laid_out(fragments: Iterator[Fragment]) -> str:
    """The fragments as Markdown, each line at its number. Fragments of one line are sentences of one paragraph."""
    lines: dict[int, list[str]] = {}
    for fragment in fragments:
        for offset, line in enumerate(fragment.text.splitlines()):
            code = line.strip().startswith((">>> ", "$ ", "Args:", "Raises:", "Returns:"))
            text = (
                ""
                if code
                else _FIELDS.sub("`x`", line.strip())
                .replace("```", "")
                .replace("``", "`")
                .replace("~~~", "")
                .translate(_MARKUP)
                .lstrip("-+=0123456789. ")
            )
            lines.setdefault(fragment.line + offset, []).append(text)
    last = max(lines, default=0)
    return "\n".join(" / ".join(filter(None, lines.get(n, []))) for n in range(1, last + 1)) + "\n"


def extract(path: Path) -> Iterator[str]:
    """The prose of a file, a text for each kind: line N of a text is prose of line N of the file."""
    source = path.read_text()
    for fragments in READERS[path.suffix](source):
        text = laid_out(fragments)
        if text.strip():
            yield text
