"""What Debian's own archive has for a kernel: its headers, as far as dkms looks at them."""

from .deb import Link, Package


def headers(kernel: str) -> Package:
    source = f"/usr/src/linux-headers-{kernel}"
    return Package(
        f"linux-headers-{kernel}",
        "1-1",
        f"Header files for Linux {kernel}",
        fields={"Source": "linux", "Section": "kernel"},
        files={
            f"{source}/Makefile": "modules:\n",
            f"{source}/.config": "CONFIG_MODULES=y\n",
            f"{source}/include/config/kernel.release": f"{kernel}\n",
            f"{source}/include/generated/utsrelease.h": f'#define UTS_RELEASE "{kernel}"\n',
            f"/lib/modules/{kernel}/build": Link(source),
            f"/lib/modules/{kernel}/source": Link(source),
        },
    )
