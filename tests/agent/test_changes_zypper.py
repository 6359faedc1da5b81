"""The agent changes packages with zypper. No real zypper was there: its XML and exit codes are those of its manual and of
recorded outputs."""

from collections.abc import Mapping

import pytest

from gpunode.model import Packages, PackageSpec
from tests.agent.conftest import Host

SLES = 'ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"\n'
KMP = "nvidia-open-driver-G06-signed-cuda-kmp-default"
MODULE = (PackageSpec(KMP),)
DRIVER = (
    PackageSpec("nvidia-compute-utils-G06", f"={KMP}", origin="nvidia", downgrade=True),
    PackageSpec("nvidia-persistenced", f"={KMP}", origin="nvidia", downgrade=True),
)
NAMES = tuple(spec.name for spec in DRIVER)
INSTALLED = f"{KMP}\t580.82.07_k6.4.0_150600.23.65-150600.3.1\tx86_64\n"
SUMMARY = """<?xml version='1.0'?>
<stream>
<message type="info">Loading repository data...</message>
<install-summary download-size="{size}" space-usage-diff="116508" packages-to-change="2" need-restart="0" need-reboot="0">
<to-install>
<solvable type="package" name="nvidia-compute-utils-G06" edition="580.82.07-150600.1" arch="x86_64" repository="gpunode-driver" summary="x &amp; y"/>
<solvable type="package" name="nvidia-persistenced" edition="580.82.07-150600.1" arch="x86_64" repository="gpunode-driver"/>
</to-install>
{more}</install-summary>
</stream>
"""
ERROR = "<?xml version='1.0'?>\n<stream>\n<message type=\"error\">{0}</message>\n</stream>\n"


class Suse:
    """A host of rpm and zypper, whose zypper says what it is told, step by step."""

    wish = MODULE

    def __init__(self, host: Host) -> None:
        self.host = host
        host.write("/etc/os-release", SLES)
        host.write("/state/rpms", "")
        host.program("rpm", 'case "$1" in --import) ;; *) cat "$GPUNODE_ROOT/state/rpms";; esac')
        host.program(
            "zypper",
            'step=run; for word in "$@"; do case "$word" in --dry-run) step=dry;; refresh) step=refresh-$4;; '
            "addlock|removelock) step=lock;; esac; done\n"
            '[ ! -e "$GPUNODE_ROOT/state/zypper-$step" ] || . "$GPUNODE_ROOT/state/zypper-$step"\n',
        )
        self.says("dry", SUMMARY.format(size=56772, more=""))

    def says(self, step: str, text: str, status: int = 0) -> None:
        self.host.write(f"/state/zypper-{step}", f"cat <<'END'\n{text}END\nexit {status}\n")

    def zypper(self) -> list[str]:
        return [call.partition("--xmlout ")[2] for call in self.host.calls() if call.startswith("zypper ")]

    def changing(self) -> list[str]:
        """Calls that were to change something."""
        return [call for call in self.zypper() if "--dry-run" not in call]


@pytest.fixture
def suse(host: Host) -> Suse:
    """Without packages."""
    return Suse(host)


def test_programs_are_of_exactly_the_modules_version_and_locked(suse: Suse):
    """The module is SUSE's, and NVIDIA's repository is often ahead of it."""
    suse.host.write("/state/rpms", INSTALLED)
    messages = suse.host.apply(Packages("why", install=DRIVER, hold=NAMES))
    assert messages[-1] == {"type": "end", "ok": True}
    wanted = (
        "--auto-agree-with-licenses --no-recommends --oldpackage --details nvidia-compute-utils-G06==580.82.07 "
        "nvidia-persistenced==580.82.07"
    )
    assert suse.zypper() == [
        f"install --dry-run {wanted}",
        f"install {wanted}",
        "addlock nvidia-compute-utils-G06 nvidia-persistenced",
    ]


def test_without_the_module_its_version_is_not_guessed(suse: Suse):
    """The newest programs would not fit it."""
    failed = suse.host.fail(Packages("why", install=DRIVER))
    assert failed["code"] == "version-missing"
    assert failed["error"] == f"{KMP} is not installed, whose version nvidia-compute-utils-G06 must have"
    assert suse.zypper() == []


def test_own_locks_make_way_for_a_change_and_come_back_when_it_fails(suse: Suse):
    """The user's are not touched; what is locked is reported as held."""
    stanza = "\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: {0}\n"
    suse.host.write("/etc/zypp/locks", stanza.format(KMP) + stanza.format("mine"))
    suse.host.write("/state/rpms", INSTALLED)
    assert suse.host.probe(packages=("*nvidia*",))["packages"][KMP]["held"]
    suse.says("run", ERROR.format("Installation has completed with error."), 8)
    assert suse.host.fail(Packages("why", install=MODULE))["code"] == "zypper-failed"
    assert [call for call in suse.zypper() if "lock" in call] == [f"removelock {KMP}", f"addlock {KMP}"]


def test_what_is_to_go_is_removed_after_a_dry_run(suse: Suse):
    """Of what is installed."""
    suse.host.write("/state/rpms", INSTALLED)
    suse.says(
        "dry",
        SUMMARY.format(size=0, more="")
        .replace("to-install", "to-remove")
        .replace("nvidia-persistenced", KMP)
        .replace("nvidia-compute-utils-G06", KMP),
    )
    assert suse.host.apply(Packages("why", remove=(KMP, "nvidia-gone")))[-1]["ok"]
    assert suse.zypper() == [f"remove --dry-run --details {KMP}", f"remove --details {KMP}"]


MORE: Mapping[str, tuple[str, str]] = {
    "would-remove": (
        '<to-remove><solvable type="package" name="kubelet" edition="1.34.2-1" arch="x86_64"/></to-remove>',
        "zypper would also remove kubelet, which was not planned",
    ),
    "would-downgrade": (
        '<to-downgrade><solvable kind="package" name="libzypp" edition="17-1" edition-old="18-1"/></to-downgrade>',
        "zypper would also downgrade libzypp, which was not planned",
    ),
    "would-install-kernel": (
        '<to-install><solvable type="package" name="kernel-default" edition="6.4.0-150600.23.70"/></to-install>',
        "zypper would also install a kernel, kernel-default 6.4.0-150600.23.70, which the next boot would take",
    ),
}


FAILURES: Mapping[str, tuple[int, str, str]] = {
    "package-missing": (104, f"No provider of '{KMP}' found.", f"no repository of this host has {KMP}"),
    "no-repositories": (6, "No repositories defined.", "zypper has no enabled repository"),
    "dependency-missing": (
        4,
        "Problem: nothing provides 'ksym(default:x) = 1' needed by the to be installed nvidia-1.x86_64",
        "no repository of this host has ksym(default:x) = 1, which nvidia-1.x86_64 needs",
    ),
    "dependencies": (
        4,
        "Problem: the to be installed x conflicts with 'nvidia-open-driver-G07'",
        "zypper cannot satisfy this: Problem: the to be installed x conflicts with",
    ),
    "zypper-locked": (
        7,
        "System management is locked by the application with pid 4242 (/usr/bin/zypper).",
        "zypper is in use by",
    ),
    "repository-unsigned": (
        8,
        "Signature verification failed for x.rpm",
        "zypper cannot check the signature",
    ),
    "repository-damaged": (
        8,
        "Digest verification failed for file 'nvidia-compute-utils-G06.rpm'",
        "zypper fetched a file that does not match its index: Digest verification failed",
    ),
    "version-locked": (
        4,
        "Problem: package nvidia-compute-utils-G06 is locked by the user",
        "a lock of the host is in the way",
    ),
    "disk-full": (8, "Installation has failed: No space left on device", "Installation has failed: No space"),
    "rpmdb-broken": (8, "Rpm database is corrupt: rpmdb: BDB0113", "rpm's database is damaged"),
    "rpm-failed": (107, "%posttrans script failed", "a package's script failed: %posttrans"),
}


# What its dry run says: code, words, exit status, cause.
FOUND = (
    *((code, SUMMARY.format(size=56772, more=more), 0, words) for code, (more, words) in MORE.items()),
    ("disk-full", SUMMARY.format(size=9 * 10**17, more=""), 0, "the packages need "),
    *((code, ERROR.format(text), status, words) for code, (status, text, words) in FAILURES.items()),
)


@pytest.mark.parametrize("status", [102, 103, 106])
def test_codes_for_information_are_no_failures(suse: Suse, status: int):
    """A reboot is wanted, zypper itself was updated, another repository was left out."""
    suse.says("run", SUMMARY.format(size=1, more=""), status)
    assert suse.host.apply(Packages("why", install=MODULE))[-1]["ok"]


def test_keys_are_imported_and_only_gpunodes_own_repository_stops_it(suse: Suse):
    """No key is taken that nobody has named."""
    suse.host.write(
        "/etc/zypp/repos.d/gpunode-driver.repo", "[gpunode-driver]\ngpgkey=file:///etc/pki/rpm-gpg/K\n"
    )
    suse.says("refresh-", ERROR.format("Some of the repositories have not been refreshed"), 4)
    messages = suse.host.apply(Packages("why", refresh=True))
    assert messages[-1]["ok"]
    assert "left a repository out" in next(m["text"] for m in messages if m["type"] == "progress")
    assert suse.zypper() == ["refresh gpunode-driver", "refresh"]
    assert any(call.startswith("rpm --import") for call in suse.host.calls())
    suse.says(
        "refresh-gpunode-driver", ERROR.format("Signature verification failed for file 'repomd.xml'"), 4
    )
    assert suse.host.fail(Packages("why", refresh=True))["code"] == "repository-unsigned"
    suse.says("refresh-gpunode-driver", ERROR.format("Download (curl) error for 'http://x'"), 4)
    assert suse.host.fail(Packages("why", refresh=True))["code"] == "repository-unreachable"
