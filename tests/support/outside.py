"""A built-in job kind as a declaration of ``jobKinds``, for tests that it behaves in the same way."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import msgspec
import yaml

from queuectl.objects.kinds import KINDS, JobKinds, descriptions_of
from queuectl.objects.kinds.declared import read_kinds
from queuectl.objects.kinds.described import DescribedKind
from tests.support.chart import CHART
from tests.support.chart import KINDS as KINDS_FILE

CONTROLLER = {"namespace": "kubeflow", "serviceAccount": "training-operator"}


def declaration(kind: str) -> dict[str, Any]:
    """The entry of ``jobKinds`` with the description of a built-in kind."""
    [description] = [one for one in descriptions_of(KINDS) if one.kind == kind]
    given: dict[str, Any] = msgspec.to_builtins(description)
    given.pop("operator", None)
    return given | {"controller": CONTROLLER}


def chart_without(kind: str, folder: Path) -> Path:
    """A copy of the chart without a built-in kind, in a new folder."""
    copy = shutil.copytree(CHART, folder)
    known = yaml.safe_load(KINDS_FILE.read_text())
    others = {**known, "kinds": [one for one in known["kinds"] if one["kind"] != kind]}
    (copy / KINDS_FILE.name).write_text(yaml.safe_dump(others))
    return copy


def declared_instead(kind: str) -> JobKinds:
    """The kinds of a queuectl without this built-in kind, to which it is declared."""
    others = {name: built_in for name, built_in in KINDS.items() if name != kind}
    with patch("queuectl.objects.kinds.declared.KINDS", others):
        [description] = read_kinds(yaml.safe_dump({"jobKinds": [declaration(kind)]}), "kinds.yaml")
    return MappingProxyType({**others, kind: DescribedKind(description)})
