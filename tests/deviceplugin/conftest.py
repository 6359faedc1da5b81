"""The plugin at work in this process: a fake NVML below it, a fake kubelet beside it."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gpunode.contract.config import Config
from gpunode.deviceplugin import discovery, watch
from gpunode.deviceplugin.cluster.apiserver import ApiServer
from gpunode.deviceplugin.cluster.publish import Publisher
from gpunode.deviceplugin.health import Health, XidPolicy
from gpunode.deviceplugin.kubelet import reclaim
from gpunode.deviceplugin.plugin import serve

from .kubelet import FakeKubelet
from .nvml import FakeNvml


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """A task of it, which is cancelled at the end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def kubelet(sockets: Path) -> FakeKubelet:
    """It runs beside an `async` test."""
    return FakeKubelet(sockets)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async` test; it fails if it does not end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    values = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    kubelet: Any = pyfuncitem.funcargs.get("kubelet", contextlib.nullcontext())

    async def whole() -> None:
        async with kubelet:
            await asyncio.wait_for(pyfuncitem.obj(**values), 100)

    asyncio.run(whole())
    return True


@pytest.fixture
def plugin(sockets: Path, monkeypatch) -> Callable[..., Any]:
    """An async context in which the whole plugin runs on a FakeNvml, with short waits; settings as keywords."""
    for name, seconds in (("TICK", 0.05), ("RESCAN", 0.1), ("RETRY", 0.1)):
        monkeypatch.setattr(discovery, name, seconds)
    monkeypatch.setattr(watch, "TICK", 0.05)
    for name, seconds in (("POLL", 0.05), ("SOON", 0.05)):
        monkeypatch.setattr(reclaim, name, seconds)

    @contextlib.asynccontextmanager
    async def started(
        nvml: FakeNvml,
        xid_policy: XidPolicy | None = None,
        *,
        publisher: Publisher | None = None,
        health: dict[str, Health] | None = None,
        api: ApiServer | None = None,
        **settings: Any,
    ) -> AsyncIterator[Any]:
        defaults = {
            "kubelet_socket": str(sockets / "kubelet.sock"),
            "health_interval": 0.05,
            "recovery_seconds": 0.2,
        }
        config = Config(**{**defaults, **settings})
        async with running(serve(nvml, config, xid_policy or XidPolicy(), publisher, health, api)) as task:
            yield task

    return started
