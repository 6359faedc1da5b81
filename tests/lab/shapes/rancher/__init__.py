"""The layout of an agent of k3s or RKE2: their unit, folders and settings; its containerd and kubelet are the lab's real ones.

The program that starts both is a stand-in, agent.py: neither product is in a package registry.
source: k3s, install.sh; RKE2, bundle/lib/systemd/system/rke2-agent.service
"""

from pathlib import Path
from typing import Literal

from ...api import Node

AGENT = Path(__file__).with_name("agent.py")
UNIT = """\
[Unit]
Description={name}
Wants=network-online.target
After=network-online.target

[Install]
WantedBy=multi-user.target

[Service]
Type=notify
EnvironmentFile=-/etc/default/%N
EnvironmentFile=-/etc/sysconfig/%N
KillMode=process
Delegate=yes
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStart=/usr/local/bin/{name} agent
"""
# What a machine has and a container has not, beside 05-lab.conf: layers on a disk of their own.
LAYERS = """\
[Service]
ExecStartPre=/bin/sh -c 'mountpoint -q {agent}/containerd || mount --bind /var/lib/containerd {agent}/containerd'
"""
SETTINGS = """\
# the platform team owns this file
server: https://10.0.0.1:6443
token-file: /etc/rancher/token
node-label:
  - pool=lab
  - rack=r12
kubelet-arg:
  - v=2  # until the ticket is closed
"""
# The product's own template with one more handler.
TEMPLATE = """\
{{ template "base" . }}

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.sandboxed]
  runtime_type = "io.containerd.runc.v2"
"""


def become(node: Node, name: Literal["k3s", "rke2"]) -> None:
    """A bare host, kubelet and containerd of its own taken away, becomes an agent; its node keeps its name."""
    agent = f"/var/lib/rancher/{name}/agent"
    programs = f"/var/lib/rancher/{name}/" + ("data/current/bin" if name == "k3s" else "bin")
    service = f"/etc/systemd/system/{name}-agent.service"
    node.exec(
        [
            "sh",
            "-c",
            "systemctl disable -q --now kubelet lab-images containerd; umount -l /var/lib/kubelet/pods 2>/dev/null; true",
        ]
    )
    folders = f"{programs} {agent}/images {agent}/containerd {agent}/etc/containerd {agent}/etc/kubelet.conf.d {service}.d /etc/rancher/{name}"
    units = "/usr/lib/systemd/system"
    move = f"""
        mkdir -p {folders}
        mv /usr/bin/kubelet /usr/bin/containerd /usr/bin/containerd-shim-runc-v2 /usr/bin/ctr {programs}
        cp /usr/sbin/runc {programs}
        cp {units}/kubelet.service.d/05-lab.conf {service}.d
        mv /usr/local/lib/lab/images.tar {agent}/images
        mv /etc/kubernetes/kubelet.conf {agent}/kubelet.kubeconfig
        mv /etc/kubernetes/pki/ca.crt {agent}/client-ca.crt
        sed -E '/^(containerRuntimeEndpoint|staticPodPath):/d; s,/etc/kubernetes/pki/ca.crt,{agent}/client-ca.crt,' \
            /var/lib/kubelet/config.yaml > {agent}/etc/kubelet.conf.d/50-site.conf
        rm -r {units}/kubelet.service* {units}/containerd.service {units}/lab-images.service \
            /etc/default/kubelet /etc/containerd /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env
    """
    node.exec(["sh", "-ec", move])
    for path, text in {
        f"/usr/local/bin/{name}": AGENT.read_text(),
        service: UNIT.format(name=name),
        f"{service}.d/06-layers.conf": LAYERS.format(agent=agent),
        f"/etc/rancher/{name}/config.yaml": SETTINGS,
        f"{agent}/etc/containerd/config-v3.toml.tmpl": TEMPLATE,
    }.items():
        node.write(path, text)
    node.exec(["chmod", "755", f"/usr/local/bin/{name}"])
    node.exec(["systemctl", "daemon-reload"])
    node.exec(["systemctl", "enable", "-q", "--now", f"{name}-agent"])
    node.wait_ready()
