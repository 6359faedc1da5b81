"""Turns a host of the lab into one of RHEL's kind: os-release, and the real dnf and rpm over the lab's signed repositories.

Below it stays Debian, whose dpkg and apt are still there. Its kernel is the machine's and none of RHEL's: the headers that
dkms needs come as Debian's package, and gpunode plans none.
"""

from pathlib import Path

from .api import Lab, Node

RELEASE = """NAME="Rocky Linux"
VERSION="9.6 (Blue Onyx)"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="9.6"
PRETTY_NAME="Rocky Linux 9.6 (Blue Onyx)"
"""
# As on Rocky Linux; the platform's name is in its release package there.
CONFIG = """[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
module_platform_id=platform:el9
"""
KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-lab"


def become(node: Node, uri: str, key: Path) -> None:
    """A bare host becomes a bare one of this kind."""
    packages = "dnf dnf-plugins-core rpm linux-headers-$(uname -r)"
    install = "DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends"
    node.exec(["sh", "-c", f"apt-get -qq update && {install} {packages}"])
    node.write("/usr/lib/os-release", RELEASE)
    node.write("/etc/dnf/dnf.conf", CONFIG)
    node.write("/etc/dnf/plugins/local.conf", "[main]\nenabled = 0\n")  # a package of its own there
    node.exec(["mkdir", "-p", "/etc/yum.repos.d", "/etc/pki/rpm-gpg"])
    node.write(KEY, key.read_text())
    for name in ("base", "epel"):
        lines = f"[{name}]\nname={name}\nbaseurl={uri}/{name}/\nenabled=1\ngpgcheck=1\ngpgkey=file://{KEY}\n"
        node.write(f"/etc/yum.repos.d/{name}.repo", lines)


def inventory(lab: Lab, uri: str) -> str:
    """The lab's inventory, with these repositories in place of apt's."""
    text, apt = lab.inventory.read_text(), lab.table["apt"]["uri"]
    for old, new in ((f"{apt}/cuda", f"{uri}/cuda"), (f"{apt}/toolkit/stable/deb/amd64", f"{uri}/toolkit")):
        assert old in text
        text = text.replace(old, new)
    return text
