"""An undo on hosts of dnf, dnf 5, yum and zypper: packages are at their versions of before, new ones are gone, locks as before."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpunode.engine import undo
from gpunode.host import wire
from gpunode.model import Packages, PackageSpec
from gpunode.packages.on_host import is_named, native_arch
from tests.agent import test_changes_dnf as dnf
from tests.agent import test_changes_yum as yum
from tests.agent.conftest import Host
from tests.agent.test_changes_alike import SYSTEMS

KEPT, NEW, LIBRARY = "nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-libs"
HEADERS, NEWEST = "kernel-devel", "5.14.0-570.el9"
BEFORE = {KEPT: "3:570.195.03-1.el9", "jq": "1.7-1.el9"}
# By another name than rpm's own in gpunode's lists: one of two that may be side by side, and of another architecture.
AFTER = {KEPT: "3:580.178.04-1.el9", "jq": "1.7-1.el9", NEW: "3:580.178.04-1.el9", HEADERS: NEWEST, LIBRARY: "3:580.178.04-1.el9"}  # fmt: skip
LOCKS = {"dnf": dnf.LOCKS, "dnf5": "/etc/dnf/versionlock.toml", "yum": yum.LOCKS, "zypper": "/etc/zypp/locks"}
ENDS = {
    "dnf": "Operation aborted.",
    "dnf5": "Operation aborted by the user.",
    "yum": "Exiting on user command",
}


def arch(name: str) -> str:
    return "i686" if name == LIBRARY else "x86_64"


def rpms(packages: dict[str, str]) -> str:
    return "".join(f"{name}\t{version}\t{arch(name)}\n" for name, version in packages.items())


def table(system: str, rows: Sequence[tuple[str, str]]) -> str:
    """A dry run that shows what happens to packages."""
    versions = {name: BEFORE[name] if act == "downgrade" else AFTER[name] for act, name in rows}
    if system == "zypper":
        groups = "".join(
            f'<to-{act}><solvable type="package" name="{name}" edition="{versions[name].rpartition(":")[2]}" arch="{arch(name)}"/></to-{act}>'
            for act, name in rows
        )
        return f'<stream><install-summary download-size="0" space-usage-diff="0">{groups}</install-summary></stream>\n'
    headings = {"install": "Installing", "remove": "Removing", "downgrade": "Downgrading"}
    shown = [f"{headings[act]}:\n {name}  {arch(name)}  {versions[name]}  repo  1 k\n" for act, name in rows]
    return f"{''.join(shown)}\nTransaction Summary\n{ENDS[system]}\n"


LOCK = """\
seen=
for word in "$@"; do
    case "$seen" in
        add*) echo "solvable_name: $word" >>"$GPUNODE_ROOT/etc/zypp/locks" ;;
        remove*) grep -v "solvable_name: $word\\$" "$GPUNODE_ROOT/etc/zypp/locks" >"$GPUNODE_ROOT/state/left"
            cat "$GPUNODE_ROOT/state/left" >"$GPUNODE_ROOT/etc/zypp/locks" ;;
    esac
    case "$word" in addlock|removelock) seen=$word ;; esac
done
"""
RUN = """\
for each in remove install downgrade add delete; do
    case " $* " in *" $each "*) . "$GPUNODE_ROOT/state/do-$each" ;; esac
done
"""


def writes(path: str, text: str) -> str:
    return f"cat >\"$GPUNODE_ROOT{path}\" <<'END'\n{text}END\n"


def goes(host: Host, system: str, verbs: dict[str, tuple[list[tuple[str, str]], dict[str, str]]]) -> None:
    """What its program shows for each verb, and the packages afterwards."""
    dry = ""
    for verb, (rows, after) in verbs.items():
        status = 0 if system == "zypper" else 1
        dry += f"*' {verb} '*) cat <<'END'\n{table(system, rows)}END\nexit {status};;\n"
        host.write(f"/state/do-{verb}", writes("/state/rpms", rpms(after)))
    host.write(f"/state/{'zypper' if system == 'zypper' else 'dnf'}-dry", f'case " $* " in\n{dry}esac\n')


@pytest.mark.parametrize("system", SYSTEMS)
def test_packages_and_locks_are_as_before(host: Host, system: str):
    SYSTEMS[system](host)
    host.program("rpm", 'cat "$GPUNODE_ROOT/state/rpms"')
    host.write("/state/rpms", rpms(BEFORE))
    host.write(f"/state/{'zypper' if system == 'zypper' else 'dnf'}-run", RUN)
    host.write("/state/zypper-lock", LOCK)
    host.write(LOCKS[system], "# mine\n")
    toml = "".join(f'[[packages]]\nname = "{name}"\n[[packages.conditions]]\nkey = "evr"\ncomparator = "="\nvalue = "{AFTER[name]}"\n' for name in (KEPT, NEW))  # fmt: skip
    host.write("/state/do-add", writes(LOCKS["dnf5"], f"# mine\n{toml}"))
    host.write("/state/do-delete", writes(LOCKS["dnf5"], "# mine\n"))
    new = [name for name in AFTER if name not in BEFORE]
    goes(host, system, {"install": ([("install", name) for name in (KEPT, *new)], AFTER)})
    install = tuple(PackageSpec(name, downgrade=True) for name in (KEPT, *new))
    messages = host.ask(host.job(Packages("why", install, hold=(KEPT, NEW)), record="r1", why=["why"]))
    assert messages[-1]["ok"], messages
    assert host.read(LOCKS[system]) != "# mine\n"

    (message,) = host.ask(wire.journal_job("r1"))
    journal = wire.read(message)["entries"]
    seen = host.facts(packages=(*BEFORE, *journal[0].packages))
    changes, left = undo.plan(journal, "r1", replace(seen, kernel="6.1"))
    assert left == ()
    verb = "downgrade" if system == "yum" else "install"
    kept = {name: version for name, version in AFTER.items() if name in BEFORE}
    removed = ([("remove", name) for name in new], kept)
    goes(host, system, {"remove": removed, verb: ([("downgrade", KEPT)], BEFORE)})
    messages = host.ask(host.job(*changes, record="r2", why=["why"]))
    assert messages[-1]["ok"], messages
    assert host.read("/state/rpms") == rpms(BEFORE)
    assert host.read(LOCKS[system]) == "# mine\n"


def test_another_version_or_architecture_of_a_package_that_may_be_side_by_side_is_not_named():
    native, keys = native_arch(), [f"{HEADERS}-{NEWEST}", f"{LIBRARY}.i686", KEPT]
    rows = [
        (HEADERS, native, f"0:{NEWEST}", True),
        (HEADERS, native, "5.14.0-1.el9", False),
        ("kernel", native, NEWEST, False),
        (LIBRARY, "i686", "1", True),
        (LIBRARY, native, "1", False),
        (KEPT, native, "1", True),
        (KEPT, "noarch", "1", True),
        (KEPT, "i686", "1", False),
    ]
    for name, machine, version, expected in rows:
        assert is_named(name, machine, version, keys) is expected, (name, machine, version)
