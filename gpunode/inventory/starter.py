"""A first inventory as text: commented, valid, to be read and changed by its user. Pure."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from gpunode.wording import page

SCHEMA = str(resources.files(__package__).joinpath("schema.json"))
NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)")
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*")  # that YAML reads as this text, but for its words


@dataclass(frozen=True, slots=True)
class Entry:
    """A host by its name, and its address where that is another. `ssh`: user, port, key and jump, as the inventory has them."""

    name: str
    address: str = ""
    ssh: tuple[tuple[str, str], ...] = ()
    left: tuple[str, ...] = ()  # ssh's options that no key holds

    @property
    def plain(self) -> bool:
        return not self.address and not self.ssh and not self.left


@dataclass(frozen=True, slots=True)
class Starter:
    """What is known for a first inventory. `source`: where the hosts come from, for people. `kubeconfig`, `context`, `user`,
    `archive`: "" where unknown or left to its default."""

    source: str
    hosts: tuple[Entry, ...]
    user: str = ""
    kubeconfig: str = ""
    context: str = ""
    archive: str = ""  # the device plugin's image
    jumps: tuple[str, ...] = ()  # by which the hosts are reached


def text(known: Starter) -> str:
    """The file. Keys that are not decided stand there as comments."""
    return "\n".join([*_lines(known), ""])


def _lines(known: Starter) -> Iterator[str]:
    yield f"# yaml-language-server: $schema={SCHEMA}"
    yield f"# Written by `gpunode init` from {known.source}. Every key: {page('reference/inventory')}"
    yield ""
    decided = bool(known.kubeconfig or known.context or known.archive)
    yield "cluster:" if decided else "# cluster:"
    yield _line(f"  kubeconfig: {_scalar(known.kubeconfig)}", "", known.kubeconfig, "~/.kube/config")
    yield _line(
        f"  context: {_scalar(known.context)}", "of $KUBECONFIG, else ~/.kube/config", known.context, "prod"
    )
    yield "  # The device plugin's image, by `gpunode plugin image`. Without it only the hosts' part is done."
    yield _line(f"  plugin: {{archive: {_scalar(known.archive)}}}", "", known.archive, "plugin.tar")
    yield ""
    yield "defaults:                           # every host starts from these"
    yield _line(
        f"  ssh: {{user: {_scalar(known.user)}}}", "else ssh's own configuration decides", known.user, "ops"
    )
    yield "  driver: auto                      # the branch that fits the GPUs; or 580, a full version, none"
    yield "  # repositories:                   # for an air gap"
    yield "  #   driver: {uri: https://mirror.example/cuda, key: nvidia.asc}"
    yield "  #   toolkit: {uri: https://mirror.example/libnvidia-container, key: nvidia-toolkit.asc}"
    yield "  runtime: default                  # nvidia is the default runtime; class: only for pods of RuntimeClass nvidia"
    yield "  work: wait                        # for pods on GPUs before a disruptive change; or drain, kill"
    yield ""
    yield "groups:"
    yield "  gpu:                              # remove hosts without an NVIDIA GPU"
    yield "    # labels: {pool: inference}     # of the hosts' nodes"
    yield "    hosts:"
    for name in ranges([host.name for host in known.hosts if host.plain]):
        yield f"      - {_scalar(name)}"
    for entry in known.hosts:
        if not entry.plain:
            rest = (
                f"   # no key holds {', '.join(entry.left)}: write it in ~/.ssh/config" if entry.left else ""
            )
            yield f"      - {{{', '.join(_keys(entry))}}}{rest}"
    for name in known.jumps:
        yield f"      # - {_scalar(name)}   # looks like a jump host; uncomment if it has GPUs"


def _keys(entry: Entry) -> Iterator[str]:
    yield f"name: {_scalar(entry.name)}"
    if entry.address:
        yield f"address: {_scalar(entry.address)}"
    if entry.ssh:
        values = (f"{key}: {value if key == 'port' else _scalar(value)}" for key, value in entry.ssh)
        yield f"ssh: {{{', '.join(values)}}}"


def ranges(names: Sequence[str]) -> list[str]:
    """The names in their order; three or more in a row that count up become one: `gpu-[01:03]`."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _next(runs[-1][-1]) == name:
            runs[-1].append(name)
        else:
            runs.append([name])
    return [entry for run in runs for entry in ([_range(run[0], run[-1])] if len(run) > 2 else run)]


def _next(name: str) -> str | None:
    """The name that follows: gpu-09 → gpu-10."""
    parts = NUMBERED.fullmatch(name)
    return f"{parts[1]}{int(parts[2]) + 1:0{len(parts[2])}}{parts[3]}" if parts else None


def _range(first: str, last: str) -> str:
    start, other = NUMBERED.fullmatch(first), NUMBERED.fullmatch(last)
    assert start
    assert other
    return f"{start[1]}[{start[2]}:{other[2]}]{start[3]}"


def _line(line: str, comment: str, known: str, example: str) -> str:
    """The line, or where its value is unknown an example of it as a comment."""
    if not known:
        line = f"  # {line[2:]}".replace('""', example)
    return f"{line:<35} # {comment}" if comment else line


def _scalar(value: str) -> str:
    """The value as YAML reads it back."""
    keywords = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"}
    return value if PLAIN.fullmatch(value) and value.lower() not in keywords else json.dumps(value)
