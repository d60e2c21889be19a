"""YAML as Kubernetes reads it, within bounds, so that a small text cannot cost much.

The parser is libyaml's, read event by event. libyaml's own composer is not used: it recurses in C and ends the process on deeply nested
input.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from yaml._yaml import CParser
from yaml.composer import Composer, ComposerError
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_INTEGER: Final = "tag:yaml.org,2002:int"
_LONGEST_INTEGER: Final = 1000
"""Characters. Python formats no number of more than 4,300 digits, and forms such as hexadecimal can read one."""


class RepeatedKey(yaml.MarkedYAMLError):
    """A mapping has two equal keys, of which a parser would drop the first."""


def _check_keys(mapping: yaml.MappingNode) -> None:
    """Refuse a mapping with two equal keys. Raises RepeatedKey."""
    first: dict[tuple[str, str], yaml.Mark] = {}
    for key, value in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        known = first.get((key.tag, key.value))
        if known is not None:
            text = f"key {key.value!r} appears twice, first on line {known.line + 1}"
            # An alias has the mark of its anchor.
            mark = key.start_mark if key.start_mark is not known else value.start_mark
            raise RepeatedKey(problem=text, problem_mark=mark)
        first[key.tag, key.value] = key.start_mark


class YamlLoader(Composer, CParser, SafeConstructor, Resolver):
    """Values of YAML: a time stays the text it is, and no key appears twice.

    The composer is the first base class, so that it replaces the composer of libyaml's parser.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way
        first: [pair for pair in pairs if pair[0] != _TIMESTAMP]
        for first, pairs in Resolver.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, most: int, levels: int) -> None:
        """Read a text.

        Args:
            text: the text.
            most: how many values it may hold, keys included. Those of an anchor count again at each alias.
            levels: the largest number of mappings and lists inside each other.
        """
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._left = most
        self._levels = levels
        self._depth = 0

    def documents(self) -> list[Any]:
        """The values of all documents. Raises YAMLError, and ValueError for a scalar that is not of its type."""
        values = []
        while self.check_node():
            values.append(self.construct_document(self.get_node()))
        return values

    def compose_node(self, parent: yaml.Node | None, index: Any) -> Any:
        before = self._left
        if self._depth > self._levels:
            raise self.refused(f"more than {self._levels} mappings and lists are nested")
        self._depth += 1
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        # Only an alias has a node of which the values are counted. Inside its own anchor, it has none yet.
        self._left -= getattr(node, "values_inside", 1)
        if self._left < 0:
            raise self.refused("too many values")
        node.values_inside = before - self._left
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        _check_keys(node)
        return node

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > _LONGEST_INTEGER:
            why = f"a number has more than {_LONGEST_INTEGER} characters"
            raise ConstructorError(problem=why, problem_mark=node.start_mark)
        return super().construct_yaml_int(node)

    yaml_constructors = {  # noqa: RUF012 - PyYAML's own way
        **SafeConstructor.yaml_constructors,
        _INTEGER: construct_yaml_int,
    }

    def refused(self, why: str) -> ComposerError:
        """An error at the place that is read."""
        event: Any = self.peek_event()
        return ComposerError(None, None, why, event.start_mark if event is not None else None)
