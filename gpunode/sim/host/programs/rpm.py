"""rpm of a simulated RPM host: queries, removal of packages, and macros.

Source: rpm 4.18 itself, with the same commands (tests/sim/test_rpm_as_real.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpunode.sim.host import rpms
from gpunode.sim.host.machine import Machine
from gpunode.sim.host.programs.dnf_run import forget
from gpunode.sim.host.rpms import Rpm
from gpunode.sim.host.state import State

SHAPE = r"%{NVRA}\n"
LONG = {"--query": "q", "--all": "a", "--erase": "e", "--version": "V", "--verbose": "v"}
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "r": "\r"}


class CommandError(Exception):
    """An error; the message is rpm's."""


class Shapeless(Exception):
    """An invalid --queryformat."""


def rpm(state: State, arguments: list[str]) -> int:
    """`rpm -q[a] [--qf SHAPE] NAME...`, `rpm -e NAME...`, `rpm --eval MACRO`, `rpm --version`."""
    there = rpms.installed(state.machine(), state.now().packages)
    try:
        asked = _read(arguments)
        for macro in asked.macros:
            print(expand(macro, state.machine()))
        if "V" in asked.modes:
            print("RPM version 4.16.1.3")
        elif "e" in asked.modes:
            _erase(state, there, asked.names, loud="v" in asked.modes)
        elif "q" in asked.modes:
            return _query(there, asked.names, asked.shape, every="a" in asked.modes)
    except CommandError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except Shapeless as error:
        sys.stderr.write(f"error: incorrect format: {error}\n")  # rpm exits with 0 all the same
    return 0


@dataclass(frozen=True, slots=True)
class Asked:
    """The parsed arguments. `modes` are letters: query, all, erase, verbose, Version."""

    modes: str
    shape: str
    names: list[str]
    macros: list[str]


def _read(arguments: list[str]) -> Asked:
    modes, shape = "", SHAPE
    names: list[str] = []
    macros: list[str] = []
    words = iter(arguments)
    for word in words:
        option, equals, value = word.partition("=")
        if option in ("--qf", "--queryformat"):
            shape = value if equals else next(words, "")
        elif option in ("-E", "--eval"):
            macros.append(value if equals else next(words, ""))
        elif word in LONG:
            modes += LONG[word]
        elif re.fullmatch(r"-[qaev]+", word):
            modes += word[1:]
        elif word.startswith("-"):
            raise CommandError(f"rpm: {word}: unknown option, or one that the simulation has not")
        else:
            names.append(word)
    if not macros and not {"q", "e", "V"} & set(modes):
        raise CommandError("rpm: of rpm the simulation has -q, -qa, -e, --eval and --version")
    return Asked(modes, shape, names, macros)


def _query(there: Mapping[str, Rpm], names: Sequence[str], shape: str, *, every: bool) -> int:
    """Answer a query; the exit status is the number of packages that are not installed."""
    if every:
        found = [one for one in there.values() if not names or any(one.is_called(name) for name in names)]
        print("".join(written(one, shape) for one in found), end="")
        return 0
    if not names:
        raise CommandError("rpm: no arguments given for query")
    missing = 0
    for name in names:
        one = _called(there, name)
        missing += one is None
        print(written(one, shape) if one else f"package {name} is not installed\n", end="")
    return missing


def _called(there: Mapping[str, Rpm], name: str) -> Rpm | None:
    """Remove packages by name, without wildcards."""
    plain = re.sub(r"([\[*?])", r"[\1]", name)
    return next((one for one in there.values() if one.is_called(plain)), None)


def _erase(state: State, there: Mapping[str, Rpm], names: Sequence[str], *, loud: bool) -> None:
    if not names:
        raise CommandError("rpm: no packages given for erase")
    found = [(name, _called(there, name)) for name in names]
    missing = [name for name, one in found if one is None]
    if missing:
        raise CommandError("\n".join(f"error: package {name} is not installed" for name in missing))
    gone = [one for _, one in found if one]
    rest = [one for one in there.values() if one not in gone]
    needed = [
        f"\t{need} is needed by (installed) {one.nevra}"
        for one in rest
        for need in one.requires
        if not any(other.fits(need) for other in rest)
    ]
    if needed:
        raise CommandError("\n".join(("error: Failed dependencies:", *needed)))
    if loud:
        print("\n".join(("Preparing packages...", *(one.nevra for one in gone))))
    forget(state, [one.name for one in gone])


def written(package: Rpm, shape: str) -> str:
    """A package in the format of --queryformat. Raises Shapeless."""
    epoch, version, release = package.parts
    tags = {
        "NAME": package.name,
        "EPOCH": epoch or "(none)",
        "EPOCHNUM": epoch or "0",
        "VERSION": version,
        "RELEASE": release,
        "ARCH": package.arch,
        "SUMMARY": package.summary,
        "EVR": package.version,
        "NVR": f"{package.name}-{version}-{release}",
        "NVRA": f"{package.name}-{version}-{release}.{package.arch}",
        "NEVR": f"{package.name}-{package.version}",
        "NEVRA": package.nevra,
        "SIZE": str(package.kib * 1024),
    }

    def put(found: re.Match[str]) -> str:
        width, tag, escape = found["width"], found["tag"], found["escape"]
        if tag is None:
            return "%" if found[0] == "%%" else ESCAPES.get(escape, "")
        if tag.upper() not in tags:
            raise Shapeless(f'unknown tag: "{tag}"')
        text = tags[tag.upper()]
        return text.ljust(-int(width)) if width.startswith("-") else text.rjust(int(width or 0))

    if re.search(r"%-?\d*\{[^}]*$", shape):
        raise Shapeless("missing } after %{")
    return re.sub(r"%(?P<width>-?\d*)\{(?P<tag>\w+)\}|%%|\\(?P<escape>.)", put, shape)


def expand(text: str, machine: Machine) -> str:
    """The text with the distribution's macros expanded; unknown ones stay, or are removed as %{?NAME}."""
    release = machine.os.rpartition("-")[2]
    macros = {
        "rhel": release,
        "dist": f".el{release}",
        "_arch": "x86_64",
        "_target_cpu": "x86_64",
        "_os": "linux",
    }

    def put(found: re.Match[str]) -> str:
        name = found[2] or found[3]
        return macros.get(name, "" if found[1] else found[0])

    return re.sub(r"%(?:\{(\?)?(\w+)\}|(\w+))", put, text)
