"""The parts of kubernetes_asyncio that queuectl uses: the transport and the configuration, without generated models and calls.

The generated code has 840 modules and needs 32 MiB of memory. queuectl does not call it, but the packages of the library import all
their modules. This module therefore loads the packages without their own code. Their modules are then imported as usual. If the
process has imported the whole library before, it uses that.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from queuectl.kubeconfig import expanded

_LIBRARY: Final = "kubernetes_asyncio"
logging.getLogger(f"{_LIBRARY}.config").setLevel(logging.CRITICAL)  # it also raises what it logs


def _empty_module(name: str) -> ModuleType:
    """A package that imports only the modules that are requested."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = sys.modules[name] = module_from_spec(spec)
    return package


def _leave_out_what_is_generated() -> None:
    _empty_module(_LIBRARY)
    client = _empty_module(f"{_LIBRARY}.client")
    _empty_module(f"{_LIBRARY}.client.models")
    for module, name in (("configuration", "Configuration"), ("api_client", "ApiClient")):
        setattr(client, name, getattr(import_module(f"{_LIBRARY}.client.{module}"), name))


if _LIBRARY not in sys.modules:
    _leave_out_what_is_generated()

# At its import, the library asks for the home directory. A container with a random uid has none.
_HOMELESS: Final = expanded("~") == Path("~")
if _HOMELESS:
    os.environ["HOME"] = "/"

# After the packages are replaced; otherwise these lines import all modules.
from kubernetes_asyncio.client import ApiClient, Configuration  # noqa: E402
from kubernetes_asyncio.config import (  # noqa: E402
    ConfigException,
    load_incluster_config,
    load_kube_config,
)

if _HOMELESS:
    del os.environ["HOME"]

__all__ = [
    "ApiClient",
    "ConfigException",
    "Configuration",
    "load_incluster_config",
    "load_kube_config",
]
