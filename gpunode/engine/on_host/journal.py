"""What was before each change, for the journal; and the host's journals as an answer, with what an undo needs."""

import json
import os
from typing import Any, Callable, Dict, List, Set

from gpunode.agent.failures import Failure
from gpunode.agent.files import put, read_file, state_of
from gpunode.agent.journal import LINES, append, end_entry, entries_of, records
from gpunode.agent.machine import show_units
from gpunode.agent.package_manager import PLANNED
from gpunode.agent.record import RECORDS, Run
from gpunode.agent.system import Message, below, glob_of, line_of, names_in, run, text_of
from gpunode.packages.on_host import half_of, name_of_system, plain_name

SNAPSHOT = "/packages.json"  # of a change of packages that is under way: all of them, as they were


def note(this: Run, change: Message) -> None:
    """Before a change that is not of a file: note what is there. Files are noted where they are written."""
    read = BEFORE.get(change["kind"])
    if read is None:
        return
    before = read(change)
    if change["kind"] == "packages":
        put(this.record + SNAPSHOT, json.dumps(read_packages()).encode(), 0o600, None, this.name)
    append(this, before)


def complete(this: Run, change: Message, failed: str = "") -> None:
    """After a change that was noted: what has become of packages, and the code of its failure."""
    if not this.noted:
        return
    after: Message = {"failed": failed} if failed else {}
    if change["kind"] == "packages":
        after.update(changed_packages(this.record))
    end_entry(this, after)
    if change["kind"] == "packages":
        forget_packages(this.record)


def forget_packages(record: str) -> None:
    """Remove what only a change of packages that is under way needs."""
    for path in glob_of(record + SNAPSHOT) + glob_of(record + PLANNED):
        os.unlink(below(path))


def complete_killed() -> None:
    """Complete the entries of packages of killed applies, before others change these packages. Needs the lock."""
    for path in glob_of(RECORDS + "/*" + SNAPSHOT):
        record = os.path.dirname(path)
        killed, journal = Run(os.path.basename(record)), below(record + LINES)
        try:
            changed = packages_of_killed(record)
            if changed["error"]:
                continue  # perhaps the next apply can read them
            for entry in entries_of(record):
                if entry.get("kind") == "packages" and "packages" not in entry:
                    status = os.stat(journal)
                    killed.n = entry["n"]
                    end_entry(killed, changed)
                    os.utime(journal, ns=(status.st_atime_ns, status.st_mtime_ns))  # the applies' order
            forget_packages(record)
        except Exception:  # a newer gpunode's, or damaged: no reason to refuse this apply
            continue


def packages_of_killed(record: str) -> Message:
    """As `changed_packages`, but only those that the killed apply was about to change: others are somebody else's."""
    changed = changed_packages(record)
    planned = set((text_of(record + PLANNED) or "").split())
    for name in list(changed["packages"]):
        if not {name, plain_name(name)} & planned:
            del changed["packages"][name]
    return changed


def read_packages() -> Dict[str, Any]:
    """All installed packages; {} where they cannot be read."""
    name = name_of_system()
    try:
        return half_of(name).read(["*"], True) if name else {}
    except OSError:
        return {}


def changed_packages(record: str) -> Message:
    """The packages that differ from the snapshot in this folder: {was, now} versions, {held, holds} before and now."""
    before, now = json.loads(text_of(record + SNAPSHOT) or "{}"), read_packages()
    changed, none = {}, {"version": None, "held": False}
    for name in sorted(set(before) | set(now)) if before and now else ():
        old, new = before.get(name, none), now.get(name, none)
        if old != new:
            changed[name] = {
                "was": old["version"],
                "held": old["held"],
                "now": new["version"],
                "holds": new["held"],
            }
    return {"packages": changed, "error": "" if before and now else "the packages could not be read"}


def unit_before(change: Message) -> Message:
    try:
        shown = show_units([change["unit"]])[0]
    except (OSError, IndexError):
        shown = {}
    return {
        "unit": change["unit"],
        "enabled": shown.get("UnitFileState", ""),
        "active": shown.get("ActiveState", ""),
        "state": "disable" if change.get("disable") else "",
    }


def modules_before(_change: Message) -> Message:
    """The loaded modules that may drive a GPU."""
    return {
        "modules": [
            name for name in names_in("/sys/module") if name.startswith(("nvidia", "nouveau", "nova"))
        ]
    }


def packages_before(change: Message) -> Message:
    return dict(modules_before(change), state="purge" if change["purge"] else "")


def layouts_before(change: Message) -> Message:
    from gpunode.links.driver.on_host.mig import read_layout

    return {"layouts": {gpu["pci"]: [read_layout(gpu["pci"]), gpu["after"]] for gpu in change["gpus"]}}


def boolean_before(change: Message) -> Message:
    return {"name": change["name"], "state": run("getsebool", change["name"]).out.rpartition(" ")[2].strip()}


def driver_before(change: Message) -> Message:
    from gpunode.links.driver.on_host.runfile import read_installed_run

    installed = read_installed_run()
    state = installed["version"] if installed else ""
    return dict(modules_before(change), name=change["version"], state=state)


BEFORE: Dict[str, Callable[[Message], Message]] = {
    "packages": packages_before,
    "service": unit_before,
    "kernel_module": modules_before,
    "mig_layout": layouts_before,
    "selinux_boolean": boolean_before,
    "load_image": lambda change: {"name": change["reference"]},
    "install_driver": driver_before,
    "uninstall_driver": driver_before,
    "reboot": lambda _: {"name": line_of("/proc/sys/kernel/osrelease")},
}


def read_journal(run: str) -> List[Message]:
    """The entries of all applies, in order. Those of the operator's `run` ("": all) have the originals of files as `content`, or in
    `error` why not; and of packages the earlier versions that no repository has."""
    entries = []
    for folder in records():
        for entry in entries_of(folder):
            entry["apply"] = os.path.basename(folder)
            mine = run in ("", entry.get("run"))
            if entry.get("file") and mine:
                original = read_file(folder + "/" + entry["file"])
                entry["content"] = original.get("content")
                entry["error"] = original.get("error") or ("" if original["exists"] else "it is gone")
            if entry.get("kind") == "packages":
                if "packages" not in entry:  # killed, and no apply came since
                    entry.update(packages_of_killed(folder))
                if mine and run:
                    entry["unavailable"] = unavailable(entry["packages"])
            entries.append(entry)
    return entries


def refuse_if_grown(job: Message) -> None:
    """Raise Failure if another run has changed the host since a plan that rests on its journals. Needs the lock."""
    for folder in records() if job.get("known") is not None else ():
        for entry in entries_of(folder):
            if os.path.basename(folder) not in job["known"] and entry.get("run") != job["record"]:
                sentence = "%s has changed this host since this was planned: nothing was changed"
                raise Failure("changed-underneath", sentence % entry.get("by", "another gpunode"))


def unavailable(packages: Dict[str, Message]) -> List[str]:
    """Those whose earlier version no repository has, as far as their package system tells without the network."""
    earlier = {name: each["was"] for name, each in packages.items() if each["was"] not in (None, each["now"])}
    offers = half_of(name_of_system()).offers if earlier else None
    return [name for name, version in earlier.items() if offers and not offers(name, version)]


def needed_applies() -> Set[str]:
    """The names of the applies that alone know how something was before gpunode that is not so now, or how gpunode changed it; and
    those that cannot be read."""
    needed: Set[str] = set()
    applies: Dict[str, List[str]] = {}  # of each path and package, those that changed it
    originals: Dict[str, Any] = {}  # of each path
    for folder in records():
        apply = os.path.basename(folder)
        try:
            for entry in entries_of(folder):
                path = entry.get("path")
                if path:
                    originals.setdefault(path, entry["was"])
                for name in [*entry.get("packages", ()), *([path] if path else ())]:
                    applies.setdefault(name, []).append(apply)
        except Exception:  # a newer gpunode's, or damaged: no reason to refuse other applies
            needed.add(apply)
    for name, by in applies.items():
        if name not in originals:
            needed.update((by[0], by[-1]))
        elif state_of(name) != originals[name]:
            needed.update(by)  # for an undo, each must have found what the one before it wrote
    return needed
