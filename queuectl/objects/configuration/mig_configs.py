"""Parses the MIG configurations of a ResourceFlavor, which have the form of mig-parted's file."""

from __future__ import annotations

import re
from typing import Final

from queuectl.domain.mig import MigConfig, MigDevices, MigMode
from queuectl.objects.configuration import wire
from queuectl.objects.configuration.groups import once
from queuectl.objects.errors import RequestError
from queuectl.objects.names import is_name

_PROFILE: Final = re.compile(r"(?:[1-7]c\.)?([1-7])g\.[1-9][0-9]*gb(?:[+-][a-z0-9.]+)?")
_SLICES: Final = 7  # compute slices of the GPUs with the most


def read_mig_configs(spec: wire.ResourceFlavorSpec) -> tuple[MigConfig, ...]:
    """In the order of their names. Raises RequestError naming field and value."""
    given = (spec.policy.mig_configs if spec.policy is not None else None) or {}
    if given and not spec.node_labels:
        raise RequestError("spec.policy.migConfigs: requires spec.nodeLabels, which name the nodes")
    return tuple(_read_config(name, entries) for name, entries in sorted(given.items()))


def read_mig_mode(spec: wire.ResourceFlavorSpec) -> MigMode:
    """Raises RequestError if nodes are to be changed, and no configuration is listed."""
    mode = spec.policy.mig_reconfiguration if spec.policy is not None else None
    if mode is MigMode.EXECUTE and (spec.policy is None or not spec.policy.mig_configs):
        raise RequestError(
            "spec.policy.migReconfiguration: Execute requires spec.policy.migConfigs"
        )
    return mode or MigMode.PLAN


def _read_config(name: str, entries: list[wire.MigEntry]) -> MigConfig:
    path = f"spec.policy.migConfigs.{name}"
    if not is_name(name):
        raise RequestError(f"{path}: {name!r} is not a value of a label")
    if not entries:
        raise RequestError(f"{path}: has no devices")
    devices = [_read_entry(entry, f"{path}[{i}]") for i, entry in enumerate(entries)]
    return MigConfig(name, tuple(devices))


def _read_entry(entry: wire.MigEntry, path: str) -> MigDevices:
    if entry.device_filter:
        raise RequestError(
            f"{path}.device-filter: is not supported; give the devices of the GPU model of the flavor, without a filter"
        )
    indexes = None if entry.devices == "all" else tuple(entry.devices)
    once(map(str, indexes or ()), f"{path}.devices: GPU")
    profiles = entry.mig_devices or {}
    if not entry.mig_enabled:
        if profiles:
            raise RequestError(f"{path}.mig-devices: must be empty with mig-enabled: false")
        return MigDevices(indexes)
    for profile in profiles:
        if _PROFILE.fullmatch(profile) is None:
            raise RequestError(f"{path}.mig-devices: {profile!r} is not a MIG profile like 1g.10gb")
    slices = sum(int(profile[0]) * n for profile, n in profiles.items() if profile[1] == "g")
    if slices > _SLICES:
        raise RequestError(
            f"{path}.mig-devices: {slices} compute slices; a GPU has {_SLICES} or fewer"
        )
    return MigDevices(indexes, tuple(sorted(profiles.items())))
