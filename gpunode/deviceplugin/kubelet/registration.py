"""Registers a resource's socket with the kubelet: this plugin's, or another plugin's."""

from __future__ import annotations

from pathlib import Path

import grpc

from . import v1beta1_pb2 as api
from .service import Service

# The protocol's versions, newest first, with their method. The old ones ignore the message's last field.
VERSIONS = {
    "v1beta1": "/v1beta1.Registration/Register",
    "v1alpha2": "/deviceplugin.Registration/Register",
    "0.1": "/deviceplugin.Registration/Register",  # what v1alpha1 calls itself (constants.go of Kubernetes 1.8)
}
DEADLINE = 10.0  # seconds; newer kubelets call back before they answer


class NoVersion(Exception):
    """The kubelet serves no known version of the protocol."""


async def register(
    kubelet: Path, endpoint: str, service: Service, plugin_options: api.DevicePluginOptions
) -> None:
    """Register `service` in the newest version that the kubelet accepts, and set `service.version` to it.

    `endpoint` is its socket's name. Raises NoVersion, AioRpcError.
    """
    refusal: Exception = NoVersion("the kubelet serves no version of the device plugin protocol")
    async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
        for version in VERSIONS:
            service.version = version
            try:
                await _call(channel, version, endpoint, service.resource, plugin_options)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    continue  # no such service: an older kubelet, or a newer one
                if "version" not in (error.details() or "").lower():
                    raise
                refusal = error
    raise refusal


async def introduce(kubelet: Path, other: Path, resource: str) -> None:
    """Register the plugin behind the socket `other` for `resource`, with its own options. Raises AioRpcError."""
    async with (
        grpc.aio.insecure_channel(f"unix:{other}", options=[("grpc.default_authority", "localhost")]) as them,
        grpc.aio.insecure_channel(f"unix:{kubelet}") as channel,
    ):
        ask = them.unary_unary(
            "/v1beta1.DevicePlugin/GetDevicePluginOptions",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.DevicePluginOptions.FromString,
        )
        plugin_options = await ask(api.Empty(), timeout=DEADLINE)
        await _call(channel, "v1beta1", other.name, resource, plugin_options)


async def _call(
    channel: grpc.aio.Channel,
    version: str,
    endpoint: str,
    resource: str,
    plugin_options: api.DevicePluginOptions,
) -> None:
    request = api.RegisterRequest(
        version=version, endpoint=endpoint, resource_name=resource, options=plugin_options
    )
    call = channel.unary_unary(
        VERSIONS[version],
        request_serializer=api.RegisterRequest.SerializeToString,
        response_deserializer=api.Empty.FromString,
    )
    await call(request, timeout=DEADLINE)
