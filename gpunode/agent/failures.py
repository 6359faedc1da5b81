"""Why a change failed: the codes, their hints, and the exception that carries one."""

from typing import Any, Dict, Iterable, Optional

# What the user does next, by code. A package system has its own beside these.
HINTS = {
    "repository-unreachable": "Check `repositories` in the inventory and the host's network or proxy; then run again.",
    "repository-unsigned": "Check `repositories.*.key` in the inventory: it must be the key that signs it.",
    "repository-damaged": "The mirror is half synchronised, or a proxy changes files: sync it again, or use another; then run again.",
    "sources-broken": "Fix the list file that is reported, then run again.",
    "no-repositories": "Enable the distribution's repositories (RHEL: `subscription-manager register`), then run again.",
    "version-locked": "See `dnf versionlock list` and `excludepkgs`, or `zypper locks`, on the host, remove what hides it, then run again.",
    "dependency-missing": "Enable the repository that has it (EPEL, CodeReady Builder) on the host, then run again.",
    "file-conflict": "Remove the other package or file, then run again.",
    "package-missing": "Check `repositories` in the inventory: they do not hold this package.",
    "version-missing": "Choose an available version, or leave the version open.",
    "dependencies": "An installed package conflicts: try to install these packages by hand on the host to see which.",
    "would-remove": "gpunode removes only what the plan names: remove the packages by hand if you do not need them.",
    "would-downgrade": "To have that version, set it in the inventory (`driver`, `toolkit`).",
    "would-install-kernel": "Upgrade the host's kernel and reboot, or give it a repository with kernel-devel-matched of its running "
    "kernel; then run again.",
    "rpm-failed": "Fix the error of the package's script, `dnf reinstall` that package on the host, then run again.",
    "rpmdb-broken": "Repair it on the host (`rpm --rebuilddb`), then run again.",
    "download-failed": "Check `driver.url` in the inventory, and the host's way to it (the agent uses no proxy); then run again.",
    "checksum-mismatch": "Take the file from NVIDIA again, or correct `driver.sha256` in the inventory; then run again.",
    "driver-present": "Remove the driver's packages on the host: they and NVIDIA's installer overwrite each other's files.",
    "nouveau-loaded": "Reboot the host, so that it starts without nouveau and nova; then run again.",
    "compiler-missing": "Install the programs that it names (gcc, make, the headers of libc), then run again.",
    "module-unsigned": "Secure Boot is on: enrol the key of dkms at the console (`mokutil --import`), or turn it off.",
    "module-build-failed": "See /var/log/nvidia-installer.log and /var/lib/dkms/nvidia; choose a version that knows this kernel.",
    "installer-failed": "Fix the error that its log names, then run again.",
    "headers-missing": "Install the running kernel's headers, or boot a kernel that has them.",
    "disk-full": "Free space on that file system, then run again.",
    "read-only": "The file system is mounted read-only, often after an I/O error: see `dmesg` on the host.",
    "immutable": "See `lsattr` on the host; take the attribute away (`chattr -i`) or leave that file to its owner, then run again.",
    "os-error": "Fix the error on the host (for a permission: set `sudo: true`), then run again.",
    "changed-underneath": "It was changed after the plan was made: run again for a new plan.",
    "check-failed": "The file is unchanged; fix the error that its program reports.",
    "selinux-failed": "Install policycoreutils, or set the boolean by hand on the host; then run again.",
    "unit-failed": "Fix the error (`journalctl -u` on the host shows more), then run again.",
    "cut-off": "Find the part of the change that cuts the host off its network, and leave it out; then run again.",
    "module-in-use": "Stop the programs that use the GPUs (drain the node), then run again.",
    "gpus-in-use": "Their work continues. Run again: gpunode waits for it, as the inventory's `work` says.",
    "mig-failed": "See nvidia-smi's message; stop what uses the GPU, or change `mig` in the inventory; then run again.",
    "module-missing": "Build it on the host (`dkms autoinstall`, for another kernel with `-k`; the log is below /var/lib/dkms), then run again.",
    "module-failed": "`dmesg | grep NVRM` on the host shows more.",
    "image-failed": "Fix the runtime's error, or check that the archive contains the inventory's image.",
    "payload-damaged": "Run again; if it happens again, the archive changes while it is sent.",
    "reboot-failed": "Reboot the host by hand, or fix the error of `systemctl reboot`; then run again.",
    "packages-hang": "Find what it waits for (`journalctl` on the host, `dpkg --audit` with apt). Then run again: gpunode "
    "first finishes an interrupted dpkg.",
    "aborted": "Run again: it plans from the current state.",
    "interrupted": "Run again: it plans from the current state.",
    "unkillable": "See `dmesg` on the host, then reboot it: the boot restores the guarded files.",
    "newer-record": "Use that gpunode or a newer one for this host.",
    "unknown-operation": "Use one gpunode: its command line and its agent are of different versions.",
    "unknown-change": "Use one gpunode: its command line and its agent are of different versions.",
    "internal": "The earlier changes stay made. Report this bug with these lines: `gpunode help troubleshooting#when-you-ask-for-help`.",
    "unsupported-package-manager": "Install driver and toolkit by hand, and set `driver: none` and `toolkit: none`.",
}


class Failure(Exception):
    """A change that could not be made; `code` is for programs, `error` one sentence for people."""

    def __init__(
        self, code: str, error: str, detail: Iterable[str] = (), restored: Iterable[str] = ()
    ) -> None:
        super(Failure, self).__init__(error)
        self.code, self.error = code, error
        self.detail, self.restored = list(detail), list(restored)

    def message(self, n: Optional[int]) -> Dict[str, Any]:
        """As it is sent: `n` is the index of the change that failed, None where the whole job is refused."""
        return {
            "type": "failed",
            "n": n,
            "code": self.code,
            "error": self.error,
            "detail": self.detail,
            "restored": self.restored,
        }
