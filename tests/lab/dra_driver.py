"""A DRA driver on a lab host: `python3 dra_driver.py SETTINGS.json`, with the plugin's modules on PYTHONPATH.

It registers with the kubelet as NVIDIA's does, and hands the devices of a claim out by the CDI names of their UUIDs. Messages as in
k8s.io/kubelet 1.36: pkg/apis/dra/v1/api.proto, pkg/apis/pluginregistration/v1/api.proto.
"""

import asyncio
import json
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpunode.deviceplugin.rpc import Server

DRIVER = "gpu.nvidia.com"
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
SOCKET = Path("/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock")
REGISTRATION = Path("/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock")
SETTINGS = json.loads(Path(sys.argv[1]).read_text()) if __name__ == "__main__" else {}


def field(number: int, content: str | bytes) -> bytes:
    data, size, length = content.encode() if isinstance(content, str) else content, bytearray(), 0
    length = len(data)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + data


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each text or message in it."""
    at = 0
    while at < len(message):
        number, at, size, shift = message[at] >> 3, at + 1, 0, 0
        while True:
            size, at, shift, more = size | (message[at] & 127) << shift, at + 1, shift + 7, message[at] > 127
            if not more:
                break
        yield number, message[at : at + size]
        at += size


def get_claim(namespace: str, name: str) -> Any:
    trust = ssl.create_default_context(cafile=SETTINGS["ca"])
    trust.load_cert_chain(SETTINGS["cert"], SETTINGS["key"])
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
    with urllib.request.urlopen(SETTINGS["server"] + path, context=trust, timeout=20) as answer:
        return json.load(answer)


async def prepare(request: bytes) -> bytes:
    answer = b""
    for _, claim in fields(request):
        namespace, uid, name = (dict(fields(claim))[number].decode() for number in (1, 2, 3))
        live = await asyncio.to_thread(get_claim, namespace, name)
        devices = b"".join(
            field(
                1,
                field(1, result["request"])
                + field(2, result["pool"])
                + field(3, result["device"])
                + field(4, f"nvidia.com/gpu={SETTINGS['devices'][result['device']]}"),
            )
            for result in live["status"]["allocation"]["devices"]["results"]
        )
        answer += field(1, field(1, uid) + field(2, devices))
    return answer


async def unprepare(request: bytes) -> bytes:
    return b"".join(
        field(1, field(1, dict(fields(claim))[2]) + field(2, b"")) for _, claim in fields(request)
    )


async def info(_request: bytes) -> bytes:
    return field(1, "DRAPlugin") + field(2, DRIVER) + field(3, str(SOCKET)) + field(4, "v1.DRAPlugin")


async def told(_request: bytes) -> bytes:
    print("registered", flush=True)
    return b""


async def main() -> None:
    SOCKET.parent.mkdir(parents=True, exist_ok=True)
    for path in (SOCKET, REGISTRATION):
        path.unlink(missing_ok=True)
    methods = {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare}
    await Server({f"{SERVICE}/{name}": call for name, call in methods.items()}, {}).start(SOCKET)
    registration = {"GetInfo": info, "NotifyRegistrationStatus": told}
    paths = {f"/pluginregistration.Registration/{name}": call for name, call in registration.items()}
    await Server(paths, {}).start(REGISTRATION)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
