"""The kubelet's device manager: registers device plugins and allocates devices to containers.

It speaks the device plugin protocol v1beta1 as kubelets since 1.26 do: a plugin that registers is called back before it
gets its answer. On its other socket, as in kubelets since 1.20, it serves the PodResources API. Its checkpoint is written at
each allocation and each list, not when a pod ends.
"""

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from gpunode.contract.checkpoint import FILE_NAME
from gpunode.sim.apiserver.store import Object
from gpunode.sim.node import podresources_pb2 as podresources
from gpunode.sim.node import v1beta1_pb2 as api
from gpunode.sim.node.container import Endpoints

SECONDS = 10.0  # for a plugin's answer


class Unavailable(Exception):
    """A pod cannot get the devices it requests; the message is the kubelet's."""


class Plugin:
    """One registered plugin: a channel to it, and the devices that it listed last."""

    def __init__(self, socket: Path, changed: Callable[[], None]) -> None:
        self.devices: dict[str, bool] = {}  # id -> whether it is healthy
        self._changed = changed
        # A pool of its own: else the channel would inherit the back-off of an earlier one that found no socket.
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=options)
        self.options = self.call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        stream = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        self._thread = threading.Thread(target=self._watch, args=(stream(api.Empty()),), daemon=True)
        self._thread.start()

    def call(self, method: str, request: Any, response: Any) -> Any:
        ask = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return ask(request, timeout=SECONDS)

    def close(self) -> None:
        self._channel.close()
        self._thread.join()

    def _watch(self, answers: Any) -> None:
        with contextlib.suppress(grpc.RpcError):
            for answer in answers:
                self.devices = {device.ID: device.health == "Healthy" for device in answer.devices}
                self._changed()
        self.devices = dict.fromkeys(self.devices, False)  # unhealthy without their plugin
        self._changed()


class Allocation(NamedTuple):
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: bytes  # the plugin's


class DeviceManager:
    """The devices of one node. It survives restarts of its kubelet, as the kubelet's checkpoint does.

    `pods` gives the node's pods for the PodResources API; None: the kubelet is too old for it.
    """

    def __init__(
        self,
        place: Endpoints,
        changed: Callable[[], None],
        pods: Callable[[], Iterable[Object]] | None = None,
    ) -> None:
        self._folder, self._resources = place.plugins, place.resources
        self._changed, self._pods = changed, pods
        self._servers: list[Any] = []
        self._plugins: dict[str, Plugin] = {}
        self._known: dict[str, int] = {}  # resource -> its last capacity
        self._allocated: dict[str, list[Allocation]] = {}  # by pod's uid
        self._lock = threading.Lock()

    def start(self) -> None:
        """Serve after a start of the kubelet: removes the old sockets, so that plugins register again.

        Resources that were offered before count 0 until then.
        """
        self._known = dict.fromkeys(self._known, 0)
        for path in self._folder.iterdir():
            if not path.is_dir() and path.name != FILE_NAME:
                path.unlink()
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=api.RegisterRequest.FromString,
            response_serializer=api.Empty.SerializeToString,
        )
        list_ = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=podresources.ListPodResourcesRequest.FromString,
            response_serializer=podresources.ListPodResourcesResponse.SerializeToString,
        )
        self._servers = [_serve(self._folder, "v1beta1.Registration", {"Register": register})]
        if self._pods is not None:
            self._servers.append(_serve(self._resources, "v1.PodResourcesLister", {"List": list_}))

    def stop(self) -> None:
        """End the servers and the streams; the sockets stay, as those of a stopped kubelet do."""
        for server in self._servers:
            server.stop(grace=None).wait()
        self._servers = []
        with self._lock:
            plugins, self._plugins = list(self._plugins.values()), {}
        for plugin in plugins:
            plugin.close()

    def counts(self) -> dict[str, tuple[int, int]]:
        """(all, healthy) devices by resource; (0, 0) for resources that were offered before."""
        with self._lock:
            now = {name: plugin.devices for name, plugin in self._plugins.items()}
            self._known |= {name: len(devices) for name, devices in now.items()}
            return {name: (count, sum(now.get(name, {}).values())) for name, count in self._known.items()}

    def allocate(self, pod: str, container: str, requests: Mapping[str, int]) -> dict[str, str]:
        """Allocate devices to a container of a pod (its uid); returns their environment. Raises Unavailable."""
        environment: dict[str, str] = {}
        for resource, count in requests.items():
            with self._lock:
                plugin = self._plugins.get(resource)
                held = self._allocated_ids(resource)
                healthy = [device for device, good in plugin.devices.items() if good] if plugin else []
                free = [device for device in healthy if device not in held]
            if plugin is None or len(free) < count:
                raise Unavailable(
                    f"Allocate failed due to requested number of devices unavailable for {resource}. "
                    f"Requested: {count}, Available: {len(free)}, which is unexpected"
                )
            try:
                ids = self._prefer(plugin, free, count)
                request = api.AllocateRequest(
                    container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
                )
                answer = plugin.call("Allocate", request, api.AllocateResponse)
            except grpc.RpcError as error:
                why = f"rpc error: code = {error.code().name.title()} desc = {error.details()}"
                raise Unavailable(f"Allocate failed due to {why}, which is unexpected") from None
            (granted,) = answer.container_responses
            made = Allocation(container, resource, tuple(ids), granted.SerializeToString())
            with self._lock:
                self._allocated.setdefault(pod, []).append(made)
            self._write()
            environment |= dict(granted.envs)
        return environment

    def free(self, pod: str) -> None:
        with self._lock:
            self._allocated.pop(pod, None)

    def _on_list(self) -> None:
        self._write()
        self._changed()

    def _write(self) -> None:
        """Write the checkpoint (pkg/kubelet/cm/devicemanager/checkpoint): units by NUMA node since 1.20, and before as one list."""
        with self._lock:
            entries = [
                {
                    "PodUID": pod,
                    "ContainerName": allocation.container,
                    "ResourceName": allocation.resource,
                    "DeviceIDs": allocation.ids if self._pods is None else {"-1": allocation.ids},
                    "AllocResp": base64.b64encode(allocation.answer).decode(),
                }
                for pod, allocations in self._allocated.items()
                for allocation in allocations
            ]
            healthy = {
                name: [unit for unit, good in plugin.devices.items() if good]
                for name, plugin in self._plugins.items()
            }
            data = {"PodDeviceEntries": entries or None, "RegisteredDevices": healthy}
            new = self._folder / f".{FILE_NAME}"
            new.write_text(json.dumps({"Data": data, "Checksum": 0}))
            new.replace(self._folder / FILE_NAME)

    def _allocated_ids(self, resource: str) -> set[str]:
        return {
            device
            for allocations in self._allocated.values()
            for allocation in allocations
            if allocation.resource == resource
            for device in allocation.ids
        }

    def _list(self, _request: Any, _context: Any) -> podresources.ListPodResourcesResponse:
        answer = podresources.ListPodResourcesResponse()
        for pod in self._pods() if self._pods else ():
            meta = pod["metadata"]
            shown = answer.pod_resources.add(name=meta["name"], namespace=meta["namespace"])
            with self._lock:
                allocations = list(self._allocated.get(meta["uid"], ()))
            for container in pod["spec"]["containers"]:
                devices = [
                    podresources.ContainerDevices(
                        resource_name=allocation.resource, device_ids=allocation.ids
                    )
                    for allocation in allocations
                    if allocation.container == container["name"]
                ]
                shown.containers.add(name=container["name"], devices=devices)
        return answer

    def _prefer(self, plugin: Plugin, free: list[str], count: int) -> list[str]:
        if not plugin.options.get_preferred_allocation_available:
            return free[:count]
        preference = api.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=count)
        request = api.PreferredAllocationRequest(container_requests=[preference])
        answer = plugin.call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        preferred = [deviceID for deviceID in answer.container_responses[0].deviceIDs if deviceID in free]
        return [*preferred, *(device for device in free if device not in preferred)][:count]

    def _register(self, request: Any, context: Any) -> Any:
        if request.version != "v1beta1":
            context.abort(
                grpc.StatusCode.UNKNOWN,
                f'requested API version "{request.version}" is not supported by kubelet. '
                'Supported version is "v1beta1"',
            )
        try:
            plugin = Plugin(self._folder / request.endpoint, self._on_list)
        except grpc.RpcError as error:
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to connect to the plugin: {error.details()}")
            raise  # not reached: abort raises
        with self._lock:
            before = self._plugins.pop(request.resource_name, None)
            self._plugins[request.resource_name] = plugin
        if before is not None:
            before.close()
        return api.Empty()


def _serve(folder: Path, service: str, handlers: dict[str, Any]) -> Any:
    (folder / "kubelet.sock").unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix:{folder}/kubelet.sock")
    server.start()
    return server
