"""Changes in a line, and what changes inside files, without secrets."""

import pytest

from gpunode.host import diff
from gpunode.model import (
    Change,
    ForgetHost,
    GpuLayout,
    InstallDriver,
    KernelModule,
    LoadImage,
    MigLayout,
    Packages,
    PackageSpec,
    Reboot,
    RemoveFile,
    RemoveImage,
    SelinuxBoolean,
    Service,
    UninstallDriver,
    WriteFile,
)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (WriteFile("/a", "x", "why"), "write /a"),
        (WriteFile("/a", "x", "why", before="y"), "change /a"),
        (RemoveFile("/a", "x", "why"), "remove /a"),
        (Packages("why", refresh=True), "refresh the package lists"),
        (Packages("why", install=(PackageSpec("a", "1.*"),), hold=("a",)), "install a 1.* and hold it"),
        (
            Packages("why", install=(PackageSpec("a", "1"), PackageSpec("b", "1")), hold=("a", "b")),
            "install a, b 1 and hold them",
        ),
        (
            Packages("why", install=(PackageSpec("h"), PackageSpec("a", "1")), hold=("a",)),
            "install h, a 1; hold a",
        ),
        (Packages("why", remove=("a",), install=(PackageSpec("b"),)), "remove a; install b"),
        (Packages("why", hold=("a", "b")), "hold a, b"),
        (Packages("why", release=("a", "b")), "unhold a, b"),
        (Service("docker.service", "why", restart=True), "restart docker"),
        (Service("docker.service", "why", enable=True, restart=True), "enable and restart docker"),
        (Service("docker.service", "why"), "start docker"),
        (KernelModule("why", load=("a", "b"), unload=("c",)), "unload c; load a, b"),
        (
            MigLayout((GpuLayout("0000:19:00.0", ("3g.40gb", "1g.10gb", "1g.10gb")),), "why"),
            "MIG layout 3g.40gb + 2 × 1g.10gb on GPU 19:00.0",
        ),
        (
            MigLayout((GpuLayout("0000:19:00.0", None), GpuLayout("0000:3b:00.0", ())), "why"),
            "MIG layouts on GPU 19:00.0, 3b:00.0",
        ),
        (LoadImage("r:1", "sha256:1", "/a.tar", "docker", "why"), "load image r:1 into docker"),
        (RemoveImage("r:1", "docker", "why"), "remove image r:1 from docker"),
        (ForgetHost("why"), "remove gpunode's records of this host"),
        (
            KernelModule("why", unload=("c",), services=("d.service",)),
            "unload c (stop d until the next load)",
        ),
        (KernelModule("why", load=("a",), services=("d.service",)), "load a; start d"),
        (KernelModule("why", services=("d.service",)), "start d"),
        (
            InstallDriver("580.1", "feed", "open", "why", archive="/srv/NVIDIA.run"),
            "install driver 580.1 (open) by NVIDIA's installer: NVIDIA.run of this machine",
        ),
        (
            InstallDriver("580.1", "feed", "open", "why", url="https://a/NVIDIA.run"),
            "install driver 580.1 (open) by NVIDIA's installer: https://a/NVIDIA.run",
        ),
        (UninstallDriver("580.1", "why"), "uninstall driver 580.1 by nvidia-uninstall"),
        (SelinuxBoolean("b", "why"), "set the SELinux boolean b on"),
        (Reboot("why"), "reboot"),
    ],
)
def test_every_kind_of_change_in_one_line(change: Change, line: str):
    """What it does, in words."""
    assert diff.headline(change) == line


def test_a_changed_file_as_a_unified_diff():
    """With its context, without a header that repeats the path."""
    change = WriteFile("/a", "1\n2\nx\n", "why", before="1\n2\n3\n")
    assert diff.lines(change) == ["@@ -1,3 +1,3 @@", " 1", " 2", "-3", "+x"]


def test_a_mig_layout_before_and_after():
    """A line for each; without a driver nothing is known of before."""
    gpus = (
        GpuLayout("0000:19:00.0", ("7g.80gb",)),
        GpuLayout("0000:3b:00.0", None, ()),
        GpuLayout("0000:4c:00.0", ("1g.10gb",) * 7, seen=False),
    )
    assert diff.lines(MigLayout(gpus, "why")) == [
        "-0000:19:00.0 off",
        "+0000:19:00.0 7g.80gb",
        "-0000:3b:00.0 on, without devices",
        "+0000:3b:00.0 off",
        "-0000:4c:00.0 not known without a driver",
        "+0000:4c:00.0 7 × 1g.10gb",
    ]


def test_whole_files_need_no_hunks():
    """New and removed ones are all plus or all minus."""
    assert diff.lines(WriteFile("/a", "1\n2\n", "why")) == ["+1", "+2"]
    assert diff.lines(RemoveFile("/a", "1\n", "why")) == ["-1"]
    assert diff.lines(Reboot("why")) == []


def test_secrets_appear_by_their_size():
    """Neither when they come nor when they go. The formats are in test_redaction."""
    secret = "URIs: https://me:hunter2@mirror.example/x"
    for change in (WriteFile("/a", secret, "why"), RemoveFile("/a", secret, "why")):
        text = "\n".join(diff.lines(change))
        assert "hunter2" not in text
        assert "characters>" in text


def test_a_secret_that_changes_is_not_silent():
    """The person sees that something does, and not what."""
    change = WriteFile("/a", 'password = "aaaa"\n', "why", before='password = "bbbb"\n')
    assert diff.lines(change) == ["(a secret or white space changes)"]


def test_a_shortened_removal_names_all_packages_that_are_not_nvidias():
    names = ("nvidia-driver", "dkms", "libcuda1", "gcc", "libnvcuvid1", "linux-headers-6.12")
    removal = Packages("forget", remove=names, purge=True)
    assert diff.headline(removal, names=3) == "purge dkms, gcc, linux-headers-6.12, nvidia-driver and 2 more"
    assert diff.headline(removal, names=6) == f"purge {', '.join(names)}"
