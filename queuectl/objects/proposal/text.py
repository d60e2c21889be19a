"""A proposal as YAML with comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final

import yaml

from queuectl.domain.words import counted
from queuectl.objects.proposal.configuration import Proposal, ProposedObject

_WIDTH: Final = 110
_MAP: Final = "tag:yaml.org,2002:map"
_SEQUENCE: Final = "tag:yaml.org,2002:seq"


class _Row(dict[str, Any]):
    """A mapping that is written in one line."""


class _Words(list[Any]):
    """A list that is written in one line."""


class _Dumper(yaml.SafeDumper):
    """Writes an object that occurs twice in full each time."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


_Dumper.add_representer(
    _Row, lambda dumper, row: dumper.represent_mapping(_MAP, row, flow_style=True)
)
_Dumper.add_representer(
    _Words, lambda dumper, words: dumper.represent_sequence(_SEQUENCE, words, flow_style=True)
)


def as_yaml(proposal: Proposal, source: str) -> str:
    """The objects, each with its reasons before it. ``source``: where the nodes were read."""
    head = "\n".join(_head(proposal, source))
    return "---\n".join(
        [f"{head}\n{_entry(proposal.entries[0])}", *map(_entry, proposal.entries[1:])]
    )


def _head(proposal: Proposal, source: str) -> Iterator[str]:
    nodes = f"{counted(proposal.nodes, 'node')}, {proposal.gpus} with GPUs"
    yield from _comment(f"Proposed by queuectl init for {source}: {nodes}.")
    yield from _comment(
        "Review the objects, then run queuectl apply --dry-run -f FILE, and queuectl apply -f FILE."
    )
    if proposal.left_out:
        yield from _comment("Left out:")
        for sentence in proposal.left_out:
            yield from _comment(sentence, "- ")
    yield ""


def _entry(entry: ProposedObject) -> str:
    comments = "".join(f"{line}\n" for reason in entry.reasons for line in _comment(reason))
    body = yaml.dump(
        _rows(entry.body), Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True
    )
    return comments + body


def _comment(text: str, mark: str = "") -> Iterable[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"# {mark}",
        subsequent_indent=f"# {' ' * len(mark)}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _rows(node: Any) -> Any:
    """The value with lists of plain values, and mappings of two or more plain values in lists, in one line each."""
    if isinstance(node, dict):
        return {key: _rows(part) for key, part in node.items()}
    if isinstance(node, list):
        if _are_plain(node):
            return _Words(node)
        return [_Row(each) if _is_row(each) else _rows(each) for each in node]
    return node


def _are_plain(nodes: Iterable[Any]) -> bool:
    return not any(isinstance(value, (dict, list)) for value in nodes)


def _is_row(node: Any) -> bool:
    return isinstance(node, dict) and len(node) > 1 and _are_plain(node.values())
