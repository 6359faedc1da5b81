"""dnf's queries on a simulated host: repositories, installed and available packages."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence

from gpunode.sim.host import rpms
from gpunode.sim.host.programs import yum_repos
from gpunode.sim.host.programs.dnf_run import columns, size
from gpunode.sim.host.programs.yum_repos import Failed, Repo
from gpunode.sim.host.rpms import Rpm
from gpunode.sim.host.state import State

KINDS = {
    "installed": "installed",
    "available": "available",
    "upgrades": "upgrades",
    "updates": "upgrades",
    "all": "",
}


def repolist(state: State, options: Namespace, names: list[str]) -> int:
    """`repolist [--all]`."""
    whole = options.all or "all" in names
    repos = sorted((one for one in _repos(state, options) if one.enabled or whole), key=lambda one: one.id)
    rows = [("repo id", "repo name", "status")]
    rows += [(one.id, one.name, "enabled" if one.enabled else "disabled") for one in repos]
    if repos:
        columns([row if whole else row[:2] for row in rows])
    return 0


def makecache(state: State, options: Namespace, _: list[str]) -> int:
    """`makecache`."""
    repos = _repos(state, options)
    if not any(repo.enabled for repo in repos):
        print(yum_repos.NONE)
        return 0
    yum_repos.hold(state, repos, anew=True, quiet=options.quiet, skip=_skips(options))
    if not options.quiet:
        print("Metadata cache created.")
    return 0


def packages(state: State, options: Namespace, names: list[str]) -> int:
    """`list [--installed | --available | --upgrades] [NAME...]`."""
    sections = _sections(state, options, names)
    everything = [_row(one) for _, found in sections for one in found]
    for heading, found in sections:
        print(heading)
        columns([_row(one) for one in found], everything)
    return 0


def info(state: State, options: Namespace, names: list[str]) -> int:
    """`info`, without URL, licence and description, which simulated packages do not have."""
    for heading, found in _sections(state, options, names):
        print(heading)
        for one in found:
            epoch, version, release = one.parts
            here = one.repo.startswith("@")
            lines = {
                "Name": one.name,
                "Epoch": epoch,
                "Version": version,
                "Release": release,
                "Architecture": one.arch,
                "Size": size(one.kib),
                "Source": f"{one.name}-{version}-{release}.src.rpm",
                "Repository": "@System" if here else one.repo,
                "From repo": one.repo[1:] if here else "",
                "Summary": one.summary,
            }
            print("".join(f"{name:13}: {text}\n" for name, text in lines.items() if text))
    return 0


def check_update(state: State, options: Namespace, names: list[str]) -> int:
    """`check-update [NAME...]`: 100 if there are updates."""
    found = called(upgrades(there(state), available(state, options)), names)
    if not found:
        return 0
    print()
    columns([_row(one) for one in sorted(found, key=lambda one: one.name)])
    return 100


def there(state: State) -> dict[str, Rpm]:
    """The installed packages."""
    return rpms.installed(state.machine(), state.now().packages)


def available(state: State, options: Namespace) -> list[Rpm]:
    """The packages of the enabled repositories. Raises Failed."""
    repos = _repos(state, options)
    if not any(repo.enabled for repo in repos):
        raise Failed(yum_repos.NONE)
    return yum_repos.hold(state, repos, anew=options.refresh, quiet=options.quiet, skip=_skips(options))


def upgrades(installed: Mapping[str, Rpm], known: Iterable[Rpm]) -> list[Rpm]:
    """The newest version of each package that is installed in an older one."""
    return [one for one in newest(known) if one.name in installed and one.age > installed[one.name].age]


def called(found: Iterable[Rpm], names: Sequence[str]) -> list[Rpm]:
    """The packages that match a name; all without names."""
    return [one for one in found if not names or any(one.is_called(name) for name in names)]


def newest(found: Iterable[Rpm]) -> list[Rpm]:
    """The newest version of each package."""
    best: dict[str, Rpm] = {}
    for one in found:
        if one.name not in best or one.age > best[one.name].age:
            best[one.name] = one
    return list(best.values())


def _repos(state: State, options: Namespace) -> list[Repo]:
    only, enable, disable = (
        [name for word in words for name in word.split(",")]
        for words in (options.repo, options.enablerepo, options.disablerepo)
    )
    return yum_repos.chosen(yum_repos.read(state.root), only, enable, disable)


def _skips(options: Namespace) -> bool:
    return "*.skip_if_unavailable=1" in options.setopt


def _row(package: Rpm) -> tuple[str, str, str]:
    return f"{package.name}.{package.arch}", package.version, package.repo


def _sections(state: State, options: Namespace, names: list[str]) -> list[tuple[str, list[Rpm]]]:
    """Packages under dnf's headings. Raises Failed if there are none."""
    kind = next((kind for kind in KINDS.values() if kind and getattr(options, kind)), "")
    if not kind and names and names[0] in KINDS:
        kind, names = KINDS[names[0]], names[1:]
    installed = there(state)
    known = [] if kind == "installed" else available(state, options)
    news = upgrades(installed, known)
    others = [one for one in newest(known) if one.name not in installed]
    sections = {
        "Installed Packages": list(installed.values()) if kind in ("", "installed") else [],
        "Available Packages": []
        if kind == "upgrades"
        else known
        if options.showduplicates
        else [*news, *others],
        "Available Upgrades": news if kind == "upgrades" else [],
    }
    asked = [
        (heading, sorted(called(found, names), key=lambda one: (one.name, one.age)))
        for heading, found in sections.items()
    ]
    if names and not any(found for _, found in asked):
        raise Failed("No matching Packages to list")
    return [(heading, found) for heading, found in asked if found]
