"""Takes from every Python that is started with this folder in PYTHONPATH what Python has on Linux, but not on a Mac.

Nothing is made of macOS itself: files and their names, signals, `ps` and the shell remain those of Linux.
"""

import ctypes
import errno
import os
import select
import socket
import sys

LONGEST_SOCKET = 103  # bytes of a Unix socket's path
LINUX = {
    os: (
        "copy_file_range", "eventfd", "eventfd_read", "eventfd_write", "getrandom", "getxattr", "listxattr", "memfd_create",
        "pidfd_open", "posix_fadvise", "posix_fallocate", "removexattr", "sched_getaffinity", "sched_setaffinity",
        "setns", "setxattr", "splice", "unshare",
    ),
    select: ("epoll",),
    socket: ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "SO_PEERCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
}  # fmt: skip

_attribute = ctypes.CDLL.__getattr__


class Socket(socket.socket):
    """One of a kernel whose loopback has one address."""

    def bind(self, address, /):
        """Refuse what a Mac refuses."""
        if self.family == socket.AF_INET and address[0].startswith("127.") and address[0] != "127.0.0.1":
            raise OSError(errno.EADDRNOTAVAIL, "Can't assign requested address")
        if self.family == socket.AF_UNIX and len(os.fsencode(address)) > LONGEST_SOCKET:
            raise OSError("AF_UNIX path too long")
        super().bind(address)


def without_inotify(library, name):
    """libc's functions but these."""
    if name.startswith("inotify_"):
        raise AttributeError(name)
    return _attribute(library, name)


for module, names in LINUX.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
if hasattr(os, "process_cpu_count"):
    os.process_cpu_count = os.cpu_count  # as `os` itself makes it (3.13) where there is no sched_getaffinity
ctypes.CDLL.__getattr__ = without_inotify
socket.socket = Socket
socket.SocketType = Socket
if "GPUNODE_TEST_MAC" in os.environ:
    with open(os.environ["GPUNODE_TEST_MAC"], "a", encoding="utf-8") as log:
        log.write(" ".join(sys.orig_argv) + "\n")
