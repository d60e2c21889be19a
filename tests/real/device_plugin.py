"""A device plugin that registers `nvidia.com/gpu` with a kubelet. The machine has no GPUs; each device is a copy of /dev/null.

    python -m tests.real.device_plugin COUNT CONTROL

The kubelet allocates the devices, counts them, and restarts and fails pods by them as it does with GPUs. A container sees its
devices as /dev/nvidia0, /dev/nvidia1, … and their ids in NVIDIA_VISIBLE_DEVICES. The JSON file CONTROL names the ids of
`unhealthy` devices and whether the plugin does `refuse` allocations. It is read again and again.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

RESOURCE: Final = "nvidia.com/gpu"
_FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
_KUBELET: Final = _FOLDER / "kubelet.sock"
_OWN: Final = _FOLDER / "queuectl-gpu.sock"
_POLL_SECONDS: Final = 0.2

_messages, _services = grpc.protos_and_services("tests/real/deviceplugin.proto")


class Plugin(_services.DevicePluginServicer):  # type: ignore[misc, name-defined]  # made from the .proto at run time
    """Serves the devices of one node."""

    def __init__(self, count: int, control: Path) -> None:
        self._ids = [f"gpu-{number}" for number in range(count)]
        self._control = control

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._control.read_text())
        return state

    def GetDevicePluginOptions(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return _messages.DevicePluginOptions()

    def ListAndWatch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        sent = None
        while context.is_active():
            unhealthy = self._state()["unhealthy"]
            if unhealthy != sent:
                sent = unhealthy
                health = {one: "Unhealthy" if one in unhealthy else "Healthy" for one in self._ids}
                devices = [_messages.Device(ID=one, health=health[one]) for one in self._ids]
                yield _messages.ListAndWatchResponse(devices=devices)
            time.sleep(_POLL_SECONDS)

    def Allocate(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if self._state()["refuse"]:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the devices do not answer")
        return _messages.AllocateResponse(
            container_responses=[_granted(one.devices_ids) for one in request.container_requests]
        )


def _granted(ids: list[str]) -> Any:
    devices = [
        _messages.DeviceSpec(
            container_path=f"/dev/nvidia{n}", host_path="/dev/null", permissions="rw"
        )
        for n in range(len(ids))
    ]
    envs = {"NVIDIA_VISIBLE_DEVICES": ",".join(sorted(ids))}
    return _messages.ContainerAllocateResponse(envs=envs, devices=devices)


def _register() -> None:
    with grpc.insecure_channel(f"unix://{_KUBELET}") as channel:
        request = _messages.RegisterRequest(
            version="v1beta1",
            endpoint=_OWN.name,
            resource_name=RESOURCE,
            options=_messages.DevicePluginOptions(),
        )
        _services.RegistrationStub(channel).Register(request, timeout=10)


def _identity(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def serve(count: int, control: Path) -> None:
    """Register after each start of the kubelet, which removes the sockets of all plugins and creates its own again."""
    while True:
        while (kubelet := _identity(_KUBELET)) is None:
            time.sleep(_POLL_SECONDS)
        _OWN.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(8))
        _services.add_DevicePluginServicer_to_server(Plugin(count, control), server)
        server.add_insecure_port(f"unix://{_OWN}")
        server.start()
        try:
            _register()
        except grpc.RpcError as error:
            print(f"the kubelet does not register the devices: {error}", flush=True)
        else:
            print(f"{count} devices are registered", flush=True)
            while _identity(_KUBELET) == kubelet and _OWN.exists():
                time.sleep(_POLL_SECONDS)
        stopped: threading.Event = server.stop(grace=0)
        stopped.wait()
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
