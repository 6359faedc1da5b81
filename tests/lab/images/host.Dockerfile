# What every host of the lab has: systemd, sshd, sudo, python3, what a kubelet needs beside its runtime, and dkms with
# its compiler, as where a module was built before. No host is worth that dpkg waits for the disk.
FROM gpunode-lab/debian:new
ARG PACKAGES
COPY apt /etc/apt
RUN echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/lab
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get -y upgrade \
 && DEBIAN_FRONTEND=noninteractive apt-get -y install --no-install-recommends $PACKAGES \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /etc/ssh/ssh_host_* /etc/machine-id \
 && touch /etc/machine-id
# no consoles, no devices of its own: the machine's kernel is shared
RUN systemctl mask getty.target console-getty.service systemd-udevd.service systemd-udev-trigger.service \
    systemd-modules-load.service sys-kernel-debug.mount sys-kernel-config.mount sys-kernel-tracing.mount \
    dev-hugepages.mount systemd-remount-fs.service apt-daily.timer apt-daily-upgrade.timer \
 && useradd --create-home --shell /bin/bash ops \
 && install -d -m 700 -o ops -g ops /home/ops/.ssh \
 && install -d /opt/cni && ln -s /usr/lib/cni /opt/cni/bin
CMD ["/sbin/init"]
