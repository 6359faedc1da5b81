"""dnf of a simulated RPM host, with dnf 4's messages: lists, installs and removes packages.

Source: dnf 4.14 itself, with the same commands (tests/sim/test_rpm_as_real.py). Not simulated: signatures, module streams,
weak dependencies, permissions, and of --setopt all but
`*.skip_if_unavailable=1` and `clean_requirements_on_remove=0`; locks of versions are not obeyed.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from gpunode.sim.host.programs import dnf_query, yum_repos
from gpunode.sim.host.programs.dnf_query import available, called, newest, there, upgrades
from gpunode.sim.host.programs.dnf_run import run
from gpunode.sim.host.programs.transaction import Unsolvable, bring, take
from gpunode.sim.host.programs.yum_repos import Failed
from gpunode.sim.host.rpms import Rpm
from gpunode.sim.host.state import State

PROTECTED = ("dnf", "yum", "systemd", "sudo")
HINT = "(try to add '--skip-broken' to skip uninstallable packages or '--nobest' to use not only best candidate packages)"
# Commands of the real dnf that are not simulated.
OTHERS = """alias autoremove changelog check deplist distro-sync download downgrade group help history mark module
    needs-restarting provides reinstall repoinfo repoquery repository-packages search shell swap updateinfo
    upgrade-minimal versionlock"""


def dnf(state: State, arguments: list[str]) -> int:
    """`dnf [OPTIONS] COMMAND [NAME...]`."""
    options, unknown = _parser().parse_known_intermixed_args(arguments)
    verb, *names = options.words or ("",)
    if options.version:
        print("4.14.0")
        return 0
    if verb not in COMMANDS:
        sys.stderr.write(_no(verb))
        return 1
    if unknown:
        sys.stderr.write(f"dnf {verb}: error: unrecognized arguments: {' '.join(unknown)}\n")
        return 2
    try:
        return COMMANDS[verb](state, options, names)
    except Unsolvable as problem:
        print(HINT, flush=True)
        sys.stderr.write(f"Error: \n Problem: {problem}\n")
    except Failed as error:
        sys.stdout.flush()
        sys.stderr.write(f"Error: {error}\n")
    return 1


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dnf", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("-y", "--assumeyes", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    for name in (
        "assumeno",
        "version",
        "refresh",
        "all",
        "installed",
        "available",
        "upgrades",
        "showduplicates",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--color")
    parser.add_argument("-C", "--cacheonly", action="store_true")
    for name in ("repo", "enablerepo", "disablerepo", "add-repo", "setopt"):
        parser.add_argument(f"--{name}", action="append", default=[])
    return parser


def _no(verb: str) -> str:
    if not verb or verb in OTHERS.split():
        return f"dnf: of dnf's commands the simulation has {', '.join(COMMANDS)}\n"
    return (
        f"No such command: {verb}. Please use /usr/bin/dnf --help\n"
        f"It could be a DNF plugin command, try: \"dnf install 'dnf-command({verb})'\"\n"
    )


def _install(state: State, options: Namespace, names: list[str]) -> int:
    """`install NAME...`: also updates an installed package, or changes it to the version that is named."""
    if not names:
        sys.stderr.write("dnf install: error: the following arguments are required: PACKAGE\n")
        return 2
    known, installed = available(state, options), there(state)
    wanted: list[Rpm] = []
    missing: list[str] = []
    for name in names:
        here = called(installed.values(), [name])
        found = newest(one for one in known if one.is_called(name) or name in one.provides)
        if not here and not found:
            print(f"No match for argument: {name}")
            missing.append(name)
        for one in here:
            print(f"Package {one.nevra} is already installed.")
        wanted += (
            one for one in found if one.name not in installed or one.age > installed[one.name].age or not here
        )
    if missing:
        raise Failed(f"Unable to find a match: {' '.join(missing)}")
    return run(state, options, bring(installed, wanted, known), {one.name for one in wanted})


def _upgrade(state: State, options: Namespace, names: list[str]) -> int:
    """`upgrade [NAME...]`."""
    known, installed = available(state, options), there(state)
    missing = [name for name in names if not called(installed.values(), [name])]
    for name in missing:
        print(f"No match for argument: {name}")
    if names and missing == names:
        raise Failed("No packages marked for upgrade.")
    return run(state, options, bring(installed, called(upgrades(installed, known), names), known))


def _remove(state: State, options: Namespace, names: list[str]) -> int:
    """`remove NAME...`: with dependents, and with dependencies that are no longer needed."""
    installed, now = there(state), state.now().packages
    missing = [name for name in names if not called(installed.values(), [name])]
    for name in missing:
        print(f"No match for argument: {name}")
    if missing == names:
        sys.stderr.write("No packages marked for removal.\n")
    gone = [one.name for one in called(installed.values(), names)] if names else []
    clean = "clean_requirements_on_remove=0" not in options.setopt
    work = take(installed, gone, [name for name, package in now.items() if package.asked or not clean])
    kept = sorted(one.name for _, one in work.changes if one.name in PROTECTED)
    if kept:
        words = "The operation would result in removing the following protected packages"
        raise Unsolvable(f"{words}: {', '.join(kept)}")
    return run(state, options, work)


def _clean(state: State, _: Namespace, __: list[str]) -> int:
    """`clean all`: removes the cache of repositories."""
    read = list((state.root / yum_repos.CACHE).glob("*.solv"))
    for path in read:
        path.unlink()
    print(f"{len(read)} files removed")
    return 0


def _config_manager(state: State, options: Namespace, _: list[str]) -> int:
    """`config-manager --add-repo URL`."""
    if not options.add_repo:
        sys.stderr.write("dnf: of `dnf config-manager` the simulation has `--add-repo URL`\n")
        return 1
    for url in options.add_repo:
        print(f"Adding repo from: {url}")
        yum_repos.add(state.root, url)
    return 0


COMMANDS: dict[str, Callable[[State, Namespace, list[str]], int]] = {
    "check-update": dnf_query.check_update,
    "clean": _clean,
    "config-manager": _config_manager,
    "erase": _remove,
    "info": dnf_query.info,
    "install": _install,
    "list": dnf_query.packages,
    "makecache": dnf_query.makecache,
    "remove": _remove,
    "repolist": dnf_query.repolist,
    "update": _upgrade,
    "upgrade": _upgrade,
}
