"""What dnf needs: NVIDIA's repositories with their keys, EPEL for dkms, the plugin that holds, and to stay on a driver branch: by
the stream of NVIDIA's module where its repository has streams, elsewhere by the versions of the packages, which are held."""

from collections.abc import Iterator
from configparser import ConfigParser, Error
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gpunode.errors import CannotPlan
from gpunode.model import Change, Desired, DriverSpec, Facts, PackageSpec, Source, Watch, WriteFile
from gpunode.packages import releases, repositories
from gpunode.packages.dnf import on_host
from gpunode.packages.names import PackageNames, PackageSystem
from gpunode.packages.signing import PURPOSES, check_expiry, check_key, expiry_notes, key_text, signer_of
from gpunode.planning import files, versions
from gpunode.planning.templates import template
from gpunode.planning.versions import is_installed

KEYS = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpunode-*"
OSTREE = "/run/ostree-booted"
REPOSITORIES = "/etc/yum.repos.d/*.repo"
ZYPPERS = "/etc/zypp/repos.d/*.repo"
REPOSITORY = "/etc/yum.repos.d/gpunode-driver.repo"
STREAM = "/etc/dnf/modules.d/nvidia-driver.module"  # what `dnf module enable` writes and libdnf reads
NAMES = PackageNames("dnf")
WATCH = Watch(
    files=(REPOSITORIES, KEYS, STREAM, OSTREE),
    packages=(
        "*nvidia*",
        "cuda-drivers*",
        "libnvsdm*",
        "dkms",
        "kernel*-devel",
        "kernel*-devel-matched",
        NAMES.holds,
        "*epel-release*",
    ),
)


def offers(facts: Facts, purpose: repositories.Purpose) -> bool:
    """Whether one of the host's enabled repositories is NVIDIA's for this."""
    family = releases.family(facts.os)
    return any(
        repo.enabled and any(repositories.offers(family, purpose, uri) for uri in repo.uris)
        for repo in repos(facts)
    )


def plan_sources(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    if desired.driver is None and not desired.toolkit:
        return ()
    if files.exists(facts, OSTREE):
        raise CannotPlan(
            "the system is an image (ostree, bootc): packages vanish with the next image",
            hint="Build driver and toolkit into the image and set `driver: none` and `toolkit: none`.",
        )
    # A stream has all versions of a branch but only the newest kmod-nvidia-*-dkms (cuda-repo-management/genmodules.py).
    whole = (
        desired.driver is not None
        and desired.driver.version != ""
        and PackageNames(releases.family(facts.os)).has_streams
    )
    changes: tuple[Change, ...] = ()
    for source in desired.sources:
        here = tuple(_source(facts, source, hotfixes=whole))
        check_expiry(facts, desired, source, here)
        changes += here
    if desired.driver is not None and desired.driver.brings:
        before = files.text(facts, REPOSITORY)
        if before is not None:
            why = "the driver comes from the distribution's own repository"
            changes = (*changes, files.remove(REPOSITORY, before, why))
    driver = desired.driver
    specs = (*desired.toolkit, *((*driver.modules, *driver.packages) if driver else ()))
    if changes or not all(is_installed(facts.packages, spec) for spec in specs):
        _check_reachable(facts, desired)
    return changes


def plan_tools(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """EPEL where dkms has to come from there, and the plugin that holds packages."""
    if desired.driver is None and not desired.toolkit:
        return ()
    changes: list[Change] = [*_epel(facts, desired)]
    brings = desired.driver.brings if desired.driver else ""
    if brings and brings not in facts.packages:
        why = "its repository has the distribution's build of the driver"
        changes.append(versions.change_packages(facts, why, install=(PackageSpec(brings),)))
    family = releases.family(facts.os)
    holds = PackageNames(family).holds
    release = releases.release(facts.os)
    if holds not in facts.packages and not (release and release.locks):
        why = f"without this plugin {family} cannot hold versions, and an upgrade from outside gives the library another version than the loaded module"
        changes.append(versions.change_packages(facts, why, install=(PackageSpec(holds),)))
    return tuple(changes)


def _check_reachable(facts: Facts, desired: Desired) -> None:
    """Refuse where the distribution's own repositories are gone and nothing is in their place."""
    family, alive = releases.family(facts.os), [repo for repo in repos(facts) if repo.enabled]
    gone = [repo for repo in alive if any(repositories.is_gone(family, uri) for uri in repo.uris)]
    ours = ("gpunode-driver", "gpunode-toolkit")
    other = [repo for repo in alive if repo not in gone and repo.id not in ours]
    named = any(source.name == "gpunode-system" for source in desired.sources)
    if (
        gone
        and not named
        and all(
            any("epel" in uri or repositories.offers_any(family, uri) for uri in repo.uris) for repo in other
        )
    ):
        raise CannotPlan(
            f"{gone[0].path}: the repositories of {facts.os.pretty} are gone ({gone[0].uris[0]})",
            hint="Name a mirror that still has them in the inventory: `repositories.system`, with uri and key.",
        )


def write_key(facts: Facts, source: Source, why: str = "") -> tuple[WriteFile, ...]:
    """Write the key of a source, once it is known to be the one that signs it. Raises CannotPlan."""
    check_key(facts, source)
    text = template("etc/pki/rpm-gpg/RPM-GPG-KEY-gpunode", key=key_text(source))
    return files.write(facts, key_path(source), text, f"the key that signs {source.uri}{why}")


def key_path(source: Source) -> str:
    return f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{source.name}"


def _source(facts: Facts, source: Source, *, hotfixes: bool) -> Iterator[Change]:
    """Key and repository. `hotfixes`: packages of the driver that no stream has are seen, too."""
    purpose = PURPOSES.get(source.name)
    yield from write_key(facts, source, "; dnf takes it for this repository only")
    signer = signer_of(facts, source)
    packages = signer is None or repositories.signed_packages(releases.family(facts.os), signer)
    text = template(
        "etc/yum.repos.d/gpunode.repo",
        id=source.name,
        words=f"NVIDIA {purpose}" if purpose else "the distribution",
        uri=source.uri,
        packages=int(packages),
        metadata=int(not packages),
        hotfixes=hotfixes and purpose == "driver",
        key=key_path(source),
    )
    yield from files.write(
        facts,
        f"/etc/yum.repos.d/{source.name}.repo",
        text,
        f"where {purpose or 'the distribution'} packages come from",
    )


def _epel(facts: Facts, desired: Desired) -> Iterator[Change]:
    """EPEL, where something of it is needed."""
    need = releases.epel(facts.os)
    if desired.driver is None or desired.driver.archive or need is None or need.package in facts.packages:
        return
    package = need.release_package
    epels = [repo for repo in repos(facts) if any("epel" in text.lower() for text in (repo.id, *repo.uris))]
    if any(repo.enabled for repo in epels):
        return
    if package and not epels and package not in facts.packages:
        why = f"its repository has {need.note}"
        yield versions.change_packages(facts, why, install=(PackageSpec(package),))
        return
    release = facts.os.version.partition(".")[0]
    way = f"`dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-{release}.noarch.rpm`"
    if epels:
        way = f"`dnf config-manager --set-enabled {epels[0].id}`"
    raise CannotPlan(
        f"{need.note}, is in EPEL, and no enabled repository is EPEL",
        hint=f"On the host: {way}; or install {need.package} from a repository of your own.",
    )


def driver_sources(facts: Facts) -> tuple[str, ...]:
    """The files but gpunode's own with NVIDIA's repository of drivers."""
    others = [
        repo for repo in repos(facts) if repo.enabled and not repo.path.endswith("/gpunode-driver.repo")
    ]
    family = releases.family(facts.os)
    return tuple(
        repo.path for repo in others if any(repositories.offers(family, "driver", uri) for uri in repo.uris)
    )


def keeps_branch(facts: Facts) -> bool:
    """Whether a stream is enabled; where there are none, whether gpunode's repository or the distribution's is there."""
    mirror = repositories.mirror(facts.os)
    if mirror is not None and mirror.package in facts.packages:
        return True
    file = facts.files.get(STREAM)
    enabled = file is not None and _enabled_stream(file.content or "") is not None
    return enabled or files.exists(facts, REPOSITORY)


def plan_branch(facts: Facts, driver: DriverSpec) -> tuple[Change, ...]:
    """The stream's file, unless that stream is enabled in it, with whatever profiles."""
    if driver.archive or driver.brings:
        before = files.text(facts, STREAM)
        hides = before is not None and _enabled_stream(before) is not None
        why = "dnf hides the distribution's packages while a stream of NVIDIA's repository is enabled"
        return (files.remove(STREAM, before, why),) if before is not None and hides else ()
    release = releases.release(facts.os)
    stream = NAMES.stream(driver.branch, driver.flavour)
    if release is None or not release.streams or _enabled_stream(files.text(facts, STREAM) or "") == stream:
        return ()
    why = f"dnf hides all packages but those of the enabled stream, and {stream} has the driver"
    return files.write_own(facts, STREAM, why, stream=stream)


def _enabled_stream(text: str) -> str | None:
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except Error:
        return None
    values = parser["nvidia-driver"] if parser.has_section("nvidia-driver") else {}
    return values.get("stream") if values.get("state") == "enabled" else None


ON = ("1", "yes", "true", "on")
ADDRESSES = ("baseurl", "mirrorlist", "metalink")


@dataclass(frozen=True, slots=True)
class Repo:
    """A section of a file. `uris` are its addresses of all kinds."""

    path: str
    id: str
    uris: tuple[str, ...]
    enabled: bool


def repos(facts: Facts) -> tuple[Repo, ...]:
    """All repositories of the host, dnf's or zypper's; none of a file that dnf could not read either."""
    pattern = ZYPPERS if releases.family(facts.os) == "zypper" else REPOSITORIES
    return tuple(
        repo
        for path, file in sorted(facts.files.items())
        if fnmatchcase(path, pattern) and file.content is not None
        for repo in _read_repos(path, file.content)
    )


def _read_repos(path: str, text: str) -> Iterator[Repo]:
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except Error:
        return
    for name in parser.sections():
        values = parser[name]
        uris = tuple(uri for key in ADDRESSES for uri in values.get(key, "").replace(",", " ").split())
        yield Repo(path, name, uris, values.get("enabled", "1").strip().lower() in ON)


def place(uri: str, arch: str) -> str:
    """A repository's address, normalised."""
    base = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    return uri.replace("$basearch", base).rstrip("/")


SYSTEM = PackageSystem(
    NAMES,
    WATCH,
    rpm=True,
    purge="dnf remove",
    reinstall="dnf reinstall",
    hints=on_host.HINTS,
    place=place,
    offers=offers,
    driver_sources=driver_sources,
    plan_sources=plan_sources,
    keeps_branch=keeps_branch,
    plan_branch=plan_branch,
    plan_tools=plan_tools,
    notes=expiry_notes,
)

# yum 3 of CentOS and RHEL 7: all is as dnf's, but a branch is in the packages' names, so nothing has to keep it.
YUM = replace(
    SYSTEM,
    names=(YUM_NAMES := PackageNames("yum")),
    watch=Watch((*WATCH.files, REPOSITORY), packages=(*WATCH.packages, YUM_NAMES.holds, "ocl-icd")),
    purge="yum remove",
    reinstall="yum reinstall",
    plan_branch=lambda _facts, _driver: (),
)
