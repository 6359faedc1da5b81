"""Telling the kubelet which socket serves a resource: ours, or that of another plugin."""

from __future__ import annotations

from pathlib import Path

import grpc

from . import v1beta1_pb2 as api
from .service import Service

# The protocol's versions, newest first, and where each is registered. The two old ones send a message that is the
# same up to the last field, which they do not know and pass over.
VERSIONS = {
    "v1beta1": "/v1beta1.Registration/Register",
    "v1alpha2": "/deviceplugin.Registration/Register",
    "0.1": "/deviceplugin.Registration/Register",  # what v1alpha1 calls itself (constants.go of Kubernetes 1.8)
}
DEADLINE = 10.0  # seconds; newer kubelets call us back before they answer


class NoVersion(Exception):
    """The kubelet serves no version of the protocol that is known here."""


async def register(kubelet: Path, endpoint: str, service: Service, wishes: api.DevicePluginOptions) -> None:
    """Register `service` in the newest version that the kubelet takes, which it is told before.

    `endpoint`: its socket's name. Raises NoVersion, AioRpcError.
    """
    refusal: Exception = NoVersion("the kubelet serves no version of the device plugin protocol")
    async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
        for version in VERSIONS:
            service.version = version
            try:
                await _tell(channel, version, endpoint, service.resource, wishes)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    continue  # no such service: an older kubelet, or a newer one
                if "version" not in (error.details() or "").lower():
                    raise
                refusal = error
    raise refusal


async def introduce(kubelet: Path, other: Path, resource: str) -> None:
    """Register whoever serves `resource` on the socket `other`, with the options that it has. Raises AioRpcError."""
    async with (
        grpc.aio.insecure_channel(f"unix:{other}", options=[("grpc.default_authority", "localhost")]) as them,
        grpc.aio.insecure_channel(f"unix:{kubelet}") as channel,
    ):
        ask = them.unary_unary(
            "/v1beta1.DevicePlugin/GetDevicePluginOptions",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.DevicePluginOptions.FromString,
        )
        wishes = await ask(api.Empty(), timeout=DEADLINE)
        await _tell(channel, "v1beta1", other.name, resource, wishes)


async def _tell(
    channel: grpc.aio.Channel, version: str, endpoint: str, resource: str, wishes: api.DevicePluginOptions
) -> None:
    request = api.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource, options=wishes)
    call = channel.unary_unary(
        VERSIONS[version],
        request_serializer=api.RegisterRequest.SerializeToString,
        response_deserializer=api.Empty.FromString,
    )
    await call(request, timeout=DEADLINE)
