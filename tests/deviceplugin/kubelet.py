"""A stand-in for the kubelet's device manager: its registration service, and its calls to the plugin."""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from gpunode.contract.checkpoint import FILE_NAME
from gpunode.sim.node import v1beta1_pb2 as api


class Connection:
    """What the kubelet holds of one registered plugin: a channel and the last list."""

    def __init__(self, path: Path) -> None:
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(f"unix:{path}", options=options)  # dials anew
        self.lists: list[dict[str, str]] = []
        self.numa: dict[str, list[int]] = {}
        self.ended = False
        self.watching: asyncio.Task[None] | None = None

    async def call(self, method: str, request: Any, response: Any) -> Any:
        stub = self.channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return await stub(request, timeout=60)

    async def watch(self, changed: Callable[[], Any]) -> None:
        stub = self.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        try:
            async for answer in stub(api.Empty()):
                self.lists.append({device.ID: device.health for device in answer.devices})
                self.numa = {
                    device.ID: [node.ID for node in device.topology.nodes] for device in answer.devices
                }
                changed()
        except grpc.aio.AioRpcError:
            pass
        finally:
            self.ended = True
            changed()


class Entry(NamedTuple):
    """What a container was given of a resource."""

    pod: str  # its UID
    container: str
    resource: str
    ids: list[str]
    envs: Mapping[str, str] | None = None  # of the plugin's answer

    def json(self) -> dict[str, Any]:
        devices = {"-1": self.ids}  # by NUMA node; -1: of none
        whose = {"PodUID": self.pod, "ContainerName": self.container, "ResourceName": self.resource}
        answer = api.ContainerAllocateResponse(envs=self.envs).SerializeToString()
        return {**whose, "DeviceIDs": devices, "AllocResp": base64.b64encode(answer).decode()}


class FakeKubelet:
    """As kubelet 1.36: wipes its directory at start, and calls the plugin back from inside Register.

    `given` is its memory of what containers have; it writes that down at each list that it gets.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[api.RegisterRequest] = []
        self.plugins: dict[str, Connection] = {}
        self.deaf = False  # registers plugins, but never asks them for their devices
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.given: list[Entry] = []
        self._server: Any = None
        self._clients: dict[str, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "FakeKubelet":
        await self.start()
        return self

    async def __aexit__(self, *_ended: object) -> None:
        await self.stop()

    async def start(self) -> None:
        for path in self.directory.iterdir():
            if not path.is_dir() and path.name != FILE_NAME:
                path.unlink()
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=api.RegisterRequest.FromString,
            response_serializer=api.Empty.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.directory}/kubelet.sock")
        await self._server.start()

    async def stop(self) -> None:
        for resource in list(self.plugins):
            await self.drop(resource)
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def drop(self, resource: str) -> None:
        """End the stream to a plugin, as kubelets now and then do."""
        connection = self.plugins.pop(resource)
        await connection.channel.close(None)
        if connection.watching is not None:
            await asyncio.gather(connection.watching, return_exceptions=True)

    async def _register(self, request: api.RegisterRequest, context: Any) -> api.Empty:
        self.requests.append(request)
        if self.refuse:
            self._changed.set()
            await context.abort(*self.refuse)
        connection = Connection(self.directory / request.endpoint)
        options = await connection.call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        assert options == request.options
        self.plugins[request.resource_name] = self._clients[request.resource_name] = connection
        self._changed.set()
        if self.deaf:
            return api.Empty()
        connection.watching = asyncio.create_task(self._run(request.resource_name, connection))
        self._tasks.add(connection.watching)
        connection.watching.add_done_callback(self._tasks.discard)
        return api.Empty()

    async def register(self, resource: str, endpoint: str, options: api.DevicePluginOptions) -> None:
        """As another plugin does it."""
        request = api.RegisterRequest(
            version="v1beta1", endpoint=endpoint, resource_name=resource, options=options
        )
        await self._register(request, None)

    def write_down(self) -> None:
        """What containers have, as the kubelet's device manager does it."""
        data = {"PodDeviceEntries": [entry.json() for entry in self.given], "RegisteredDevices": {}}
        new = self.directory / f".{FILE_NAME}"
        new.write_text(json.dumps({"Data": data, "Checksum": 1}))
        new.rename(self.directory / FILE_NAME)

    def _listed(self) -> None:
        self.write_down()
        self._changed.set()

    async def _run(self, resource: str, connection: Connection) -> None:
        """As the kubelet's runClient: the end of a stream disconnects whoever is registered by then, be it another."""
        await connection.watch(self._listed)
        if current := self._clients.pop(resource, None):
            await current.channel.close(None)

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Wait until what the plugins told makes `condition` true; its value."""
        while not (value := condition()):
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), seconds)
        return value

    def devices(self, resource: str = "nvidia.com/gpu") -> dict[str, str]:
        """Id -> health as last told; empty before the first list."""
        plugin = self.plugins.get(resource)
        return plugin.lists[-1] if plugin and plugin.lists else {}

    async def allocate(self, *ids: str, resource: str = "nvidia.com/gpu") -> api.ContainerAllocateResponse:
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])
        answer = await self.plugins[resource].call("Allocate", request, api.AllocateResponse)
        return answer.container_responses[0]

    async def pre_start(self, *ids: str, resource: str = "nvidia.com/gpu") -> None:
        """As before each start of a container, where the plugin wants it."""
        request = api.PreStartContainerRequest(devices_ids=ids)
        await self.plugins[resource].call("PreStartContainer", request, api.PreStartContainerResponse)

    async def prefer(
        self, available: list[str], must: list[str], size: int, resource: str = "nvidia.com/gpu"
    ) -> list[str]:
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
                )
            ]
        )
        plugin = self.plugins[resource]
        answer = await plugin.call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        return list(answer.container_responses[0].deviceIDs)
