"""Sample workloads as manifests: what `gpunode run manifest` prints, and `gpunode run notebook` creates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpunode.cluster.objects import manifests
from gpunode.cluster.pods import GPU
from gpunode.errors import UsageError
from gpunode.wording import page


@dataclass(frozen=True, slots=True)
class Sample:
    """A template in templates/cluster/samples. `image` is the usual one; "" where only the user can name one."""

    name: str
    image: str

    def text(
        self,
        namespace: str,
        *,
        image: str = "",
        node_selector: Mapping[str, str] = MappingProxyType({}),
        nodes: Sequence[str] = (),
        runtime_class: str = "",
        node_port: bool = False,
        resource: str = GPU,
        scheduler: str = "",
    ) -> str:
        """The manifest as YAML. `nodes`: names, of which its pods get one; (): any. `resource`, `scheduler`: what the notebook's pod asks
        for, and which places it ("": the cluster's own). Raises UsageError without an image."""
        if not (image or self.image):
            raise UsageError(
                f"{self.name} runs an image of yours, and none is named",
                hint=f"Name it with --image. A Dockerfile to begin with: {page('workloads#an-image-of-your-own')}",
            )
        return manifests.text(
            f"samples/{self.name}.yaml.j2",
            name=f"gpunode-{self.name}",
            namespace=namespace,
            image=image or self.image,
            node_selector=dict(node_selector),
            nodes=list(nodes),
            runtime_class=runtime_class,
            node_port=node_port,
            resource=resource,
            scheduler=scheduler,
        )


SAMPLES = MappingProxyType(
    {
        sample.name: sample
        for sample in (
            Sample("notebook", "tensorflow/tensorflow:latest-gpu-jupyter"),
            Sample("mnist", "chainer/chainer:v5.3.0-python3"),  # in public Dockerfiles; never pulled here
            Sample("cuda", ""),
            Sample("vectoradd", "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"),
            Sample("binpack", "nvidia/cuda:12.4.1-base-ubuntu22.04"),
        )
    }
)


def find(name: str) -> Sample:
    """The sample of this name. Raises UsageError with those that there are."""
    if name not in SAMPLES:
        raise UsageError(
            f"there is no workload {name}" if name else "no workload is named",
            hint=f"Choose one of {', '.join(SAMPLES)}: `gpunode run manifest vectoradd`.",
        )
    return SAMPLES[name]
