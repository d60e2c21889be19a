"""What queuectl uses of kubernetes_asyncio: the transport and the configuration, without the generated models and calls.

Those are 840 modules, which cost every controller 32 MiB and which nobody here calls, but the library's packages import
all of themselves. So its packages are entered here without running their own code; their modules are then found and
imported as ever. In a process that has imported the whole library before, the whole library it is.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Final

_LIBRARY: Final = "kubernetes_asyncio"


def _hollow(name: str) -> ModuleType:
    """A package of which only the modules that are asked for are ever imported."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = sys.modules[name] = module_from_spec(spec)
    return package


def _leave_out_what_is_generated() -> None:
    _hollow(_LIBRARY)
    client = _hollow(f"{_LIBRARY}.client")
    _hollow(f"{_LIBRARY}.client.models")
    for module, name in (("configuration", "Configuration"), ("api_client", "ApiClient")):
        setattr(client, name, getattr(import_module(f"{_LIBRARY}.client.{module}"), name))


if _LIBRARY not in sys.modules:
    _leave_out_what_is_generated()

# Only now, for otherwise this is what imports them.
from kubernetes_asyncio.client import ApiClient, Configuration  # noqa: E402
from kubernetes_asyncio.config import (  # noqa: E402
    ConfigException,
    load_incluster_config,
    load_kube_config,
)

__all__ = [
    "ApiClient",
    "ConfigException",
    "Configuration",
    "load_incluster_config",
    "load_kube_config",
]
