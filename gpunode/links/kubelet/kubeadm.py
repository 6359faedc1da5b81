"""kubeadm's kubelets, and those of the deb and rpm packages."""

from __future__ import annotations

from gpunode.model import Place

PLACE = Place(
    unit="kubelet.service",
    config="/var/lib/kubelet/config.yaml",
    variable="KUBELET_EXTRA_ARGS",
    variable_files=("/etc/default/kubelet", "/etc/sysconfig/kubelet"),  # Debian's, then the RPMs'
    files=("/var/lib/kubelet/kubeadm-flags.env",),
    drop_in="/etc/systemd/system/kubelet.service.d/20-gpunode.conf",
)
