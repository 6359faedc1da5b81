"""The agent changes packages with dnf. The words of dnf and rpm are those of dnf 4.14 and rpm 4.18, recorded.

`test_dnf_as_real.py` has the real ones, where they are installed.
"""

from collections.abc import Mapping

import pytest

from gpunode.model import Packages, PackageSpec
from tests.agent.conftest import Host

ROCKY = 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n'
LOCKS = "/etc/dnf/plugins/versionlock.list"
RULE = "=" * 80
DRIVER = (
    PackageSpec("nvidia-driver-cuda", "3:580.*", downgrade=True),
    PackageSpec("kmod-nvidia-open-dkms", "3:580.*", downgrade=True),
)
TABLE = f"""Last metadata expiration check: 0:00:01 ago on Sun Nov 22 12:19:23 2026.
Dependencies resolved.
{RULE}
 Package                   Arch     Version              Repository        Size
{RULE}
Installing:
 kmod-nvidia-open-dkms     noarch   3:580.178.04-1.el9   gpunode-driver   5.5 k
 nvidia-driver-cuda        x86_64   3:580.178.04-1.el9   gpunode-driver   5.6 k
Installing dependencies:
 dkms                      noarch   3.3.0-1.el9          gpunode-driver   5.4 k
%s
Transaction Summary
{RULE}
Install  3 Packages

Total download size: 27 k
Installed size: 40 k
Operation aborted.
"""


class Rocky:
    """A host of rpm and dnf, whose dnf says what it is told, step by step."""

    wish = DRIVER

    def __init__(self, host: Host) -> None:
        self.host = host
        host.write("/etc/os-release", ROCKY)
        for name in ("apt-get", "dpkg-query"):  # EPEL has both
            host.program(name, "exit 9")
        self.rpms("")
        host.program(
            "dnf",
            'step=run; for word in "$@"; do case "$word" in --assumeno) step=dry;; makecache) step=refresh;; list) step=list;; '
            'esac; done\n[ ! -e "$GPUNODE_ROOT/state/dnf-$step" ] || . "$GPUNODE_ROOT/state/dnf-$step"\n',
        )
        self.says("dry", TABLE % "", 1)

    def rpms(self, lines: str) -> None:
        self.host.write("/state/rpms", lines)
        self.host.program("rpm", 'cat "$GPUNODE_ROOT/state/rpms"')

    def says(self, step: str, text: str, status: int = 0) -> None:
        self.host.write(f"/state/dnf-{step}", f"cat <<'END'\n{text}END\nexit {status}\n")

    def dnf(self) -> list[str]:
        return [call for call in self.host.calls() if call.startswith("dnf")]

    def changing(self) -> list[str]:
        """Calls that were to change something."""
        return [call for call in self.dnf() if "install -y" in call]


@pytest.fixture
def rocky(host: Host) -> Rocky:
    """Without packages."""
    return Rocky(host)


INSTALLED = (
    "nvidia-driver-cuda\t3:580.178.04-1.el9\tx86_64\nkmod-nvidia-open-dkms\t3:580.178.04-1.el9\tnoarch\n"
)


def test_packages_are_installed_locked_and_reported_with_their_versions(rocky: Rocky):
    """A dry run first; EPEL's apt-get on such a host is not asked."""
    rocky.rpms(INSTALLED)
    names = tuple(spec.name for spec in DRIVER)
    messages = rocky.host.apply(Packages("why", install=DRIVER, hold=names, refresh=True))
    assert messages[-1] == {"type": "end", "ok": True}
    assert messages[-2]["detail"] == {"packages": dict.fromkeys(names, "3:580.178.04-1.el9")}
    calls = rocky.dnf()
    assert [call.partition("--color=never ")[2] for call in calls] == [
        "-y --refresh makecache",
        "install --assumeno nvidia-driver-cuda-3:580.* kmod-nvidia-open-dkms-3:580.*",
        "install -y nvidia-driver-cuda-3:580.* kmod-nvidia-open-dkms-3:580.*",
    ]
    assert all("exit_on_lock=1" in call and "install_weak_deps=0" in call for call in calls)
    assert not [call for call in rocky.host.calls() if call.startswith("apt")]
    assert rocky.host.read(LOCKS).splitlines() == [
        "kmod-nvidia-open-dkms-3:580.178.04-1.el9.*",
        "nvidia-driver-cuda-3:580.178.04-1.el9.*",
    ]


def test_only_gpunodes_own_locks_are_lifted_and_they_come_back_when_dnf_fails(rocky: Rocky):
    """A lock of the user's, with a wildcard, and other packages' stay; the list is byte for byte as before."""
    before = "# mine\nnvidia-driver-cuda-3:570.195.03-1.el9.*\nnvidia-driver-cuda-3:57*\nkernel-0:5.14.0-570.el9.*\n"
    rocky.host.write(LOCKS, before)
    rocky.host.write(
        "/state/dnf-run", f'cat "$GPUNODE_ROOT{LOCKS}" > "$GPUNODE_ROOT/state/seen"; echo Error: no; exit 1\n'
    )
    assert rocky.host.fail(Packages("why", install=DRIVER))["code"] == "dnf-failed"
    seen = rocky.host.read("/state/seen")
    assert "570.195" not in seen
    assert {"nvidia-driver-cuda-3:57*", "kernel-0:5.14.0-570.el9.*"} <= set(seen.splitlines())
    assert rocky.host.read(LOCKS) == before


def test_progress_comes_from_dnfs_lines(rocky: Rocky):
    """With a percentage."""
    line = "  Installing       : nvidia-driver-cuda-3:580.178.04-1.el9.x86_64            4/5 "
    told = "grep -q progress $GPUNODE_ROOT/run/gpunode/run1/messages.jsonl"
    rocky.host.write("/state/dnf-run", f"echo '{line}'; until {told}; do sleep 0.02; done\n")
    (progress,) = [m for m in rocky.host.apply(Packages("why", install=DRIVER)) if m["type"] == "progress"]
    assert progress["text"] == "Installing nvidia-driver-cuda-3:580.178.04-1.el9.x86_64"
    assert progress["percent"] == 80.0


# What dnf would do beside what the plan showed, with code and cause.
REFUSED = (
    (
        "Removing dependent packages:\n kubelet    x86_64  1.36.3-1   @kubernetes   13 M\n",
        "would-remove",
        "dnf would also remove kubelet",
    ),
    (
        "Upgrading:\n nvidia-fabricmanager   x86_64   580.178.04-1   gpunode-driver   1 M\n"
        "     replacing  nvidia-fabric-manager.x86_64 570.195.03-1\n",
        "would-remove",
        "dnf would also remove nvidia-fabric-manager",
    ),
    (
        "Downgrading:\n python3-a-package-whose-name-is-wrapped-by-dnf\n                           noarch   "
        "1.0-1.el9            baseos           5.4 k\n",
        "would-downgrade",
        "dnf would also downgrade python3-a-package-whose-name-is-wrapped-by-dnf",
    ),
)


def test_the_parts_of_a_driver_that_is_wished_go_back_with_it(rocky: Rocky):
    """All of them have one version."""
    rows = "Downgrading:\n libnvidia-ml    x86_64   3:580.178.04-1.el9   gpunode-driver   1 M\n"
    rocky.says("dry", TABLE % rows, 1)
    assert rocky.host.apply(Packages("why", install=DRIVER))[-1]["ok"]


BEST = "(try to add '--skip-broken' to skip uninstallable packages or '--nobest' to use not only best candidate packages)\n"
FAILURES: Mapping[str, tuple[str, str]] = {
    "modules-filtered": (
        "All matches were filtered out by modular filtering for argument: nvidia-driver-cuda-3:580.*\n"
        "Error: Unable to find a match: nvidia-driver-cuda-3:580.*\n",
        "module filtering hides nvidia-driver-cuda-3:580.*",
    ),
    "version-locked": (
        "Error: \n Problem: package nvidia-driver-cuda-3:580.95.05-1.el9.x86_64 requires nvidia-driver-cuda-libs = "
        "3:580.95.05, but none of the providers can be installed\n  - conflicting requests\n"
        f"  - package nvidia-driver-cuda-libs-3:580.95.05-1.el9.x86_64 is filtered out by exclude filtering\n{BEST}",
        "a version lock or an exclude of the host hides nvidia-driver-cuda-libs-3:580.95.05-1.el9.x86_64",
    ),
    "package-missing": (
        "No match for argument: kmod-nvidia-open-dkms-3:580.*\nError: Unable to find a match: kmod-nvidia-open-dkms-3:580.*\n",
        "no repository of this host has the package kmod-nvidia-open-dkms-3:580.*",
    ),
    "headers-missing": (
        "No match for argument: kernel-devel-5.14.0-1.el9\nError: Unable to find a match: kernel-devel-5.14.0-1.el9\n",
        "no repository of this host has the headers of its running kernel: kernel-devel-5.14.0-1.el9",
    ),
    "dependency-missing": (
        "Error: \n Problem: conflicting requests\n  - nothing provides dkms needed by "
        f"kmod-nvidia-open-dkms-3:580.178.04-1.el9.noarch\n{BEST}",
        "no repository of this host has dkms, which kmod-nvidia-open-dkms-3:580.178.04-1.el9.noarch needs",
    ),
    "dependencies": (
        "Error: \n Problem: problem with installed package kmod-nvidia-open-dkms-3:580.95.05-1.el9.noarch\n  - package "
        "kmod-nvidia-latest-dkms-3:595.91.07-1.el9.noarch conflicts with kmod-nvidia-open-dkms\n",
        "dnf cannot satisfy this: problem with installed package kmod-nvidia-open-dkms",
    ),
    "no-repositories": (
        'Error: There are no enabled repositories in "/etc/yum.repos.d", "/etc/yum/repos.d", "/etc/distro.repos.d".\n',
        "dnf has no enabled repository",
    ),
    "dnf-locked": ("metadata already locked by 4242\n", "dnf is in use by"),
    "rpmdb-broken": (
        "Error: Error: rpmdb open failed\n",
        "rpm's database is damaged: Error: rpmdb open failed",
    ),
}


# What its dry run says: code, words, exit status, cause.
FOUND = (
    *((code, TABLE % rows, 1, f"{words}, which was not planned") for rows, code, words in REFUSED),
    (
        "disk-full",
        (TABLE % "").replace("Installed size: 40 k", "Installed size: 20000000 M"),
        1,
        "the packages need ",
    ),
    *((code, text, 200 if code == "dnf-locked" else 1, words) for code, (text, words) in FAILURES.items()),
)


def test_a_version_that_is_not_there_is_reported_with_those_that_are(rocky: Rocky):
    """The newest first."""
    missing = "nvidia-driver-cuda-3:580.*"
    rocky.says("dry", f"No match for argument: {missing}\nError: Unable to find a match: {missing}\n", 1)
    rows = "".join(f"nvidia-driver-cuda.x86_64    3:{v}-1.el9    cuda\n" for v in ("570.195.03", "595.91.07"))
    rocky.says("list", f"Available Packages\n{rows}")
    failed = rocky.host.fail(Packages("why", install=DRIVER))
    assert failed["code"] == "version-missing"
    assert failed["error"].endswith("available: 3:595.91.07-1.el9, 3:570.195.03-1.el9")


RUNS: Mapping[str, tuple[str, int, str]] = {
    "repository-unsigned": (
        "Import of key(s) didn't help, wrong key(s)?\nPublic key for dkms-3.3.0-1.el9.noarch.rpm is not installed. Failing "
        "package is: dkms-3.3.0-1.el9.noarch\n GPG Keys are configured as: file:///etc/pki/x\nError: GPG check FAILED\n",
        1,
        "dnf cannot check the signature: Public key for dkms-3.3.0-1.el9.noarch.rpm is not installed",
    ),
    "disk-full": (
        "Error: Transaction test error:\n  installing package libnvidia-ml-3:580.178.04-1.el9.x86_64 needs 120MB more "
        "space on the / filesystem\n",
        1,
        "installing package libnvidia-ml-3:580.178.04-1.el9.x86_64 needs 120MB more space on the / filesystem",
    ),
    "file-conflict": (
        "Error: Transaction test error:\n  file /usr/bin/nvidia-smi from install of nvidia-driver-cuda-3:580.178.04-1.el9."
        "x86_64 conflicts with file from package other-1-1.noarch\n",
        1,
        "file /usr/bin/nvidia-smi from install of nvidia-driver-cuda-3:580.178.04-1.el9.x86_64 conflicts",
    ),
    "headers-missing": (
        "Error! Your kernel headers for kernel 5.14.0-570.el9.x86_64 cannot be found at /lib/modules/x/build.\nComplete!\n",
        0,
        "dkms found no headers of the kernel 5.14.0-570.el9.x86_64 to build its module with",
    ),
    "rpm-failed": (
        "warning: %post(kmod-nvidia-open-dkms-3:580.178.04-1.el9.noarch) scriptlet failed, exit status 10\n\n"
        "Error in POSTIN scriptlet in rpm package kmod-nvidia-open-dkms\nComplete!\n",
        0,
        "a script of kmod-nvidia-open-dkms-3:580.178.04-1.el9.noarch failed: no output",
    ),
}


@pytest.mark.parametrize("code", RUNS)
def test_failures_of_the_transaction_have_their_causes(rocky: Rocky, code: str):
    """rpm goes on after a script that failed, and dnf ends with 0."""
    text, status, words = RUNS[code]
    rocky.says("run", text, status)
    failed = rocky.host.fail(Packages("why", install=DRIVER))
    assert (failed["code"], failed["error"][: len(words)]) == (code, words)


def test_a_repository_without_a_key_is_named(rocky: Rocky):
    """dnf explains at length, and prints the repository's whole configuration."""
    rocky.says(
        "run",
        "You have enabled checking of packages via GPG keys. This is a good thing.\nHowever, you do not have any GPG public "
        "keys installed. You need to download\nthe keys for packages you wish to install and install them.\n\nProblem "
        "repository: [local]\n\nskip_if_unavailable: 1\nusername: \n",
        1,
    )
    failed = rocky.host.fail(Packages("why", install=DRIVER))
    assert failed["code"] == "repository-unsigned"
    assert failed["error"] == "dnf has no key to check the repository [local] with: set its `gpgkey`"


AWAY = (
    "Errors during downloading metadata for repository '{0}':\n  - Curl error (7): Couldn't connect to server for "
    "http://127.0.0.1:9/x/repodata/repomd.xml [Failed to connect]\nError: Failed to download metadata for repo '{0}': "
    "Cannot download repomd.xml: All mirrors were tried\nIgnoring repositories: {0}\nMetadata cache created.\n"
)
BAD = (
    "Error: Failed to download metadata for repo '{0}': repomd.xml GPG signature verification error: Bad GPG signature\n"
    "Ignoring repositories: {0}\nMetadata cache created.\n"
)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (AWAY, "repository-unreachable", "could not read the repository {0}: Curl error (7)"),
        (BAD, "repository-unsigned", "does not trust the signature of the repository {0}: repomd.xml GPG"),
    ],
)
def test_only_gpunodes_own_repository_stops_it_when_it_cannot_be_read(
    rocky: Rocky, text: str, code: str, words: str
):
    """Hosts have old ones; they are told."""
    rocky.says("refresh", text.format("gpunode-driver"))
    failed = rocky.host.fail(Packages("why", refresh=True))
    assert failed["code"] == code
    assert words.format("gpunode-driver") in failed["error"]
    rocky.says("refresh", text.format("old"))
    messages = rocky.host.apply(Packages("why", refresh=True))
    assert messages[-1]["ok"]
    assert words.format("old") in next(m["text"] for m in messages if m["type"] == "progress")


def test_a_lock_that_a_dead_dnf_left_is_none(rocky: Rocky):
    """Its file stays behind."""
    rocky.host.write("/var/cache/dnf/metadata_lock.pid", "4242\n")
    assert rocky.host.apply(Packages("why", install=DRIVER))[-1]["ok"]


def test_installed_packages_are_read_with_epoch_side_by_side_and_locked(rocky: Rocky):
    """Kernels' packages by their full names, those of another architecture with it."""
    rocky.rpms(
        "kernel-devel\t5.14.0-570.el9\tx86_64\nkernel-devel\t5.14.0-611.el9\tx86_64\nlibnvidia-ml\t3:580.178.04-1.el9\tx86_64\n"
        "libnvidia-ml\t3:580.178.04-1.el9\ti686\nnvidia-container-toolkit\t1.20.1-1\tx86_64\nbash\t5.1.8-9.el9\tx86_64\n"
    )
    rocky.host.write(
        LOCKS,
        "# Added lock\nlibnvidia-ml-3:580.178.04-1.el9.*\nnvidia-container-toolkit-0:1.19.0-1.*\n!bash-0:5*\n",
    )
    packages = rocky.host.probe(packages=("*nvidia*", "kernel*-devel"))["packages"]
    assert packages == {
        "kernel-devel-5.14.0-570.el9": {"version": "5.14.0-570.el9", "held": False},
        "kernel-devel-5.14.0-611.el9": {"version": "5.14.0-611.el9", "held": False},
        "libnvidia-ml": {"version": "3:580.178.04-1.el9", "held": True},
        "libnvidia-ml.i686": {"version": "3:580.178.04-1.el9", "held": True},
        "nvidia-container-toolkit": {"version": "1.20.1-1", "held": False},
    }


def test_a_database_that_cannot_be_read_is_no_empty_one(rocky: Rocky):
    """A plan made on it would install everything."""
    rocky.host.program("rpm", "echo 'error: rpmdb: damaged header #12 retrieved -- skipping.' >&2; exit 1")
    facts = rocky.host.probe(packages=("*nvidia*",))
    assert facts["packages"] is None
    assert "rpmdb: damaged header" in facts["errors"]["packages"]


def test_a_transaction_that_was_cut_off_is_named(rocky: Rocky):
    """rpm has the old and the new version of a package then; kernels' are so on purpose."""
    rocky.rpms(
        "kernel-devel\t5.14.0-570.el9\tx86_64\nkernel-devel\t5.14.0-611.el9\tx86_64\n"
        "gpg-pubkey\t350d275d-6279464b\t(none)\ngpg-pubkey\td42d0685-62589a51\t(none)\n"
        "libnvidia-ml\t3:570.195.03-1.el9\tx86_64\nlibnvidia-ml\t3:580.178.04-1.el9\tx86_64\n"
    )
    facts = rocky.host.probe(packages=("*nvidia*", "kernel*-devel"))
    assert facts["packages"] is None
    assert (
        "rpm has libnvidia-ml in two versions, 3:570.195.03-1.el9 and 3:580.178.04-1.el9"
        in facts["errors"]["packages"]
    )
    assert rocky.host.probe(packages=("kernel*-devel", "gpg-pubkey"))["packages"]
