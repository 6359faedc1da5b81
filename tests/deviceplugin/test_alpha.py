"""The plugin with kubelets of Kubernetes 1.8 and 1.9, played by a stand-in that knows their versions only."""

import asyncio

import grpc
import pytest

from . import v1alpha_pb2 as api
from .nvml import FakeNvml, Gpu

# pkg/kubelet/cm/deviceplugin/types.go of 1.9, pkg/kubelet/deviceplugin/types.go of 1.8
REFUSALS = {
    "v1alpha2": 'requested API version "{}" is not supported by kubelet. Supported version is "v1alpha2"',
    "0.1": "unsupported API version by the Kubelet registry",
}


class OldKubelet:
    """Registration of one alpha version, in the package name of those days."""

    def __init__(self, directory, version: str) -> None:
        self.directory, self.version = directory, version
        self.tried: list[str] = []
        self.registered: asyncio.Future[api.RegisterRequest] = asyncio.get_running_loop().create_future()
        self.server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self.register,
            request_deserializer=api.RegisterRequest.FromString,
            response_serializer=api.Empty.SerializeToString,
        )
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("deviceplugin.Registration", {"Register": handler}),)
        )
        self.server.add_insecure_port(f"unix:{directory}/kubelet.sock")

    async def register(self, request, context):
        self.tried.append(request.version)
        if request.version != self.version:
            await context.abort(grpc.StatusCode.UNKNOWN, REFUSALS[self.version].format(request.version))
        self.registered.set_result(request)
        return api.Empty()

    async def first_list_and_allocation(self, answer: type):
        """What ListAndWatch says first, and the answer to Allocate for all of it."""
        request = await asyncio.wait_for(self.registered, 60)
        assert (request.endpoint, request.resource_name) == ("nvidia-gpu.sock", "nvidia.com/gpu")
        async with grpc.aio.insecure_channel(f"unix:{self.directory}/{request.endpoint}") as channel:
            stream = channel.unary_stream(
                "/deviceplugin.DevicePlugin/ListAndWatch",
                request_serializer=api.Empty.SerializeToString,
                response_deserializer=api.ListAndWatchResponse.FromString,
            )(api.Empty())
            devices = {device.ID: device.health for device in (await stream.read()).devices}  # type: ignore[attr-defined]
            allocate = channel.unary_unary(
                "/deviceplugin.DevicePlugin/Allocate",
                request_serializer=api.AllocateRequest.SerializeToString,
                response_deserializer=answer.FromString,  # type: ignore[attr-defined]
            )
            return devices, await allocate(api.AllocateRequest(devicesIDs=list(devices)), timeout=60)


@pytest.mark.parametrize(("version", "tried"), [("v1alpha2", ["v1alpha2"]), ("0.1", ["v1alpha2", "0.1"])])
async def test_an_old_kubelet_gets_the_protocol_that_it_speaks(sockets, plugin, version, tried):
    """1.9 takes one set of edits; 1.8, whose v1alpha1 calls itself 0.1, an entry for each device, of which the first has the edits."""
    kubelet = OldKubelet(sockets, version)
    await kubelet.server.start()
    async with plugin(FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", minor=1)), pass_device_specs=True):
        flat = version == "v1alpha2"
        devices, answer = await kubelet.first_list_and_allocation(
            api.AllocateResponse if flat else api.AllocateResponse18
        )
        assert devices == {"GPU-a": "Healthy", "GPU-b": "Healthy"}
        edits = answer if flat else answer.spec[0]
        assert edits.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
        assert {"/dev/nvidia0", "/dev/nvidia1"} <= {node.host_path for node in edits.devices}
        if not flat:
            assert [(spec.ID, dict(spec.envs)) for spec in answer.spec[1:]] == [("GPU-b", {})]
    await kubelet.server.stop(None)
    assert kubelet.tried == tried
