"""The show: gpunode's own commands on simulated hosts, each with a sentence that explains it, one screen a step."""

import json
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from gpunode.model import Fault
from gpunode.sim import faults, folder
from gpunode.sim.forkserver import ForkServer
from gpunode.sim.process import Demo
from gpunode.wording import several

Lines: TypeAlias = Sequence[str]
Screen: TypeAlias = Callable[[Lines], Lines]

LINES = 16
HOST, LINK = re.compile(r" [^ ✓✗·]"), re.compile(r"   [✓✗·!~] ")
# What the commands of the show import: one process loads it, while the hosts are made.
LOAD = """
import kubernetes.client, kubernetes.config, kubernetes.utils.quantity, rich.progress
import gpunode.cli, gpunode.host.ssh, gpunode.report.human, gpunode.report.lines, gpunode.report.page
import gpunode.commands.label, gpunode.commands.plan, gpunode.commands.provision, gpunode.commands.verify
"""
WIDEST = 100
WORDS_A_SECOND, LONGEST = 5.0, 2.0  # pause to read; the text stays visible while the command runs
CHAINS = 3  # with more hosts, verify shows no chain that holds
REPORT = "report.html"


def results_screen(lines: Lines) -> Lines:
    """Refusals and failures, and the hosts' results."""
    tables = [number for number, line in enumerate(lines) if line.startswith(("NODE ", "HOST "))]
    if not tables:
        return shorten(lines)
    bad = [line for line in lines[: tables[0]] if "✗" in line]
    return [*shorten(bad), *shorten(lines[tables[-1] :])]


def chains_screen(lines: Lines) -> Lines:
    """The first host's chain, and of each other whole one how many links are right."""
    kept: list[str] = []
    chain: list[str] = []
    shown = False

    def close() -> None:
        nonlocal shown, chain
        if chain and shown and all("✓" in line for line in chain[1:]):
            kept.append(f"{chain[0]}: {len(chain) - 1} links, all ✓")
        else:
            kept.extend(chain)
        shown, chain = shown or bool(chain), []

    for line in lines:
        if chain and LINK.match(line):
            chain.append(line)
            continue
        close()
        if HOST.match(line) and " " not in line.strip():
            chain = [line]
        else:
            kept.append(line)
    close()
    return kept


def shorten(lines: Lines) -> Lines:
    """At most LINES lines; the last one counts the rest."""
    if len(lines) <= LINES:
        return lines
    return [*lines[: LINES - 1], f"… and {len(lines) - LINES + 1} lines more"]


def progress_ends(lines: Lines) -> Lines:
    """Of a command's progress, where no terminal shows it live: how many hosts ended how."""
    return [line for line in lines if re.match(r" \d+ (of \d+ )?hosts? ", line)]


class Show:
    """Explains and runs the commands, which `forks` starts. Pauses only on a terminal. `verbose`: shows all that they print."""

    def __init__(self, demo: Demo, forks: ForkServer, *, fast: bool, verbose: bool = False) -> None:
        self.demo, self._forks = demo, forks
        self._whole = folder.deploys_plugin(demo.folder)
        self._reading = sys.stdout.isatty() and not fast
        self._verbose = verbose

    def play(self, fault: Fault | None) -> int:
        """Play everything; 0 if every command ended as announced, else 1."""
        hosts = len(self.demo.states)
        good = provisionable(self.demo)
        odd = hosts - len(good)
        these = ("--limit", ",".join(good)) if odd else ()
        self._title()
        if hosts > 1:
            self.say(
                "Plan",
                f"{hosts} hosts without NVIDIA's software. What would change on one of them (`--diff` adds why, and diffs):",
            )
        else:
            self.say(
                "Plan",
                "One host without NVIDIA's software. What would change on it (`--diff` adds why, and diffs):",
            )
        first = (good or list(self.demo.states))[0]
        done = self.run("plan", "inventory.yaml", "--limit", first, screen=list) in (0, 4)
        rest = f" gpunode refuses {several(odd, 'host')} and says why." if odd else ""
        aim = (
            "All hosts at once, to verified GPU nodes."
            if self._whole
            else "One host of each group at a time: without a plugin in the inventory gpunode reads no cluster, and knows no pods."
        )
        self.say("Provision", f"{aim}{rest} `--yes` accepts every plan:")
        provision = ("provision", "inventory.yaml", "--yes", "--html", REPORT)
        done &= self.run(*provision, screen=results_screen) == (4 if odd else 0)
        if not good:
            return 0 if done else 1
        chain = "to the kubelet, without the cluster's links"
        if self._whole:
            chain = "to a finished CUDA pod, link by link"
        self.say("Verify", f"The chain from the PCI bus {chain}:")
        verify = ("verify", "inventory.yaml", *(these if len(good) <= CHAINS else ("--limit", good[0])))
        done &= self.run(*verify, screen=chains_screen) == 0
        self.say("Label", "Nodes by what their GPUs are, for node selectors:")
        done &= self.run("label", "inventory.yaml", "--accelerator", *these) == 0
        self.say("Again", "A second run has nothing to do:")
        done &= self.run("plan", "inventory.yaml", "--exit-code", *these) == 0
        if fault:
            done &= self.break_host(fault)
        return 0 if done else 1

    def break_host(self, fault: Fault) -> bool:
        """Break one host, let verify find the link, and let provision fix it. False if one of them does not."""
        host = faults.inflict(fault.name, list(self.demo.states.values()))
        self.say("Break", f"On {host} {fault.cause}. verify names the first broken link:")
        as_announced = self.run("verify", "inventory.yaml", "--limit", host, screen=list) == 1
        if (link := self._find_broken(host)) != fault.layer:
            print(f"verify names {link or 'no link'}; expected is {fault.layer}", flush=True)
            as_announced = False
        if fault.by_hand:
            self.say("Fix", fault.by_hand)
            return as_announced
        self.say("Fix", "provision repairs it:")
        provision = ("provision", "inventory.yaml", "--yes", "--limit", host)
        return self.run(*provision, screen=results_screen) == 0 and as_announced

    def _find_broken(self, host: str) -> str:
        """The layer of the first broken link, from verify's JSON; empty string for none."""
        command = ("verify", "inventory.yaml", "--limit", host, "--no-run", "--json")
        _, output, _ = self.demo.run(self._forks, command, capture=True)
        links = (line for line in map(json.loads, output.splitlines()) if line["type"] == "link")
        return next((str(link["layer"]) for link in links if link["status"] == "broken"), "")

    def say(self, head: str, text: str) -> None:
        """Print a step's head and sentence, and pause for reading."""
        width = min(shutil.get_terminal_size().columns, WIDEST)
        print()
        for line in textwrap.wrap(f"{head}. {text}", width):
            print(f"\033[1m{line}\033[0m" if sys.stdout.isatty() else line)
        sys.stdout.flush()
        self._pause(len(text.split()) / WORDS_A_SECOND)

    def run(self, *arguments: str, screen: Screen = shorten) -> int:
        """Run gpunode as a user would; returns its exit code. `screen` selects the lines of output to show."""
        print(f"$ gpunode {' '.join(arguments)}", flush=True)
        # A terminal shows the progress of what takes long; else it comes after the results.
        quiet = not self._verbose and not (sys.stderr.isatty() and arguments[0] == "provision")
        code, output, errors = self.demo.run(self._forks, arguments, capture=not self._verbose, quiet=quiet)
        if not self._verbose:
            progress = errors.splitlines()
            shown = [*screen(output.splitlines()), *(progress if code == 1 else progress_ends(progress))]
            print("\n".join(shown), flush=True)
        self._pause(0.8)
        return code

    def _title(self) -> None:
        text = (
            "This is a simulation: the hosts are folders on this computer behind real SSH servers, the cluster is a "
            "small stand-in, and the GPUs do not exist. gpunode does not know that; it does its real work."
        )
        self.say("gpunode demo", text)

    def _pause(self, seconds: float) -> None:
        if self._reading:
            time.sleep(min(seconds, LONGEST))


def farewell(demo: Demo, name: str, first: str = "verify") -> str:
    """Commands for a demo that keeps running; they work exactly as printed. `name`: its own. `first`: the command to begin with."""
    gpunode, good = _command(), provisionable(demo)
    these = f" --limit {','.join(good)}" if len(good) < len(demo.states) else ""
    tries = ("plan", "provision") if first == "provision" else (first,)
    commands = [f"cd {demo.folder}", *(f"{gpunode} {each} inventory.yaml{these}" for each in tries)]
    if shutil.which("kubectl"):
        commands.append("KUBECONFIG=kubeconfig kubectl get nodes")
    host = (good or list(demo.states))[0]
    if host in demo.metrics and first == "verify":
        commands.append(f"curl -s {demo.metrics[host]}   # {host}; the others' are in demo.json")
    if shutil.which("ssh"):
        options = f"-i id_ed25519 -o UserKnownHostsFile=known_hosts -p {demo.port(host)}"
        commands.append(f"ssh {options} demo@127.0.0.1 systemctl cat kubelet.service   # {host}")
    shown = "\n".join(f"  {command}" for command in commands)
    return f"""
The demo is running; its name is `{name}`. Commands to try:

{shown}

The hosts' files are in hosts/*/root. Edit them there: ssh cannot write files. The hosts' ports are in inventory.yaml.
`{gpunode} demo break LINK {name}` breaks a host, `{gpunode} demo add {name}` adds a bare host.
To end it:

  {gpunode} demo stop {name}

Next: `{gpunode} help tutorial#break-it-and-let-it-be-fixed`; then `{gpunode} help tutorial#on-your-own-host`."""


def ending(code: int, report: Path | None, *, whole: bool) -> str:
    """The closing sentences of a demo: what it showed, and the next steps. `whole`: with a device plugin."""
    seen = "from bare hosts to verified GPU nodes"
    if not whole:
        seen = "only the hosts' part, since the inventory names no cluster.plugin"
    if code:
        seen = "something did not end as expected; see above"
    html = f"\nThe run as one page, with every diff: {report}" if report else ""
    return f"""
That was the demo: {seen}. Its hosts and its cluster are gone.{html}
Next: `{_command()} demo start` starts one for commands of your own. Your own hosts: `{_command()} help tutorial#on-your-own-host`"""


def provisionable(demo: Demo) -> list[str]:
    """The hosts that can become GPU nodes."""
    machines = [state.machine() for state in demo.states.values()]
    return [machine.name for machine in machines if machine.gpus]


def _command() -> str:
    """The command that starts this gpunode from a shell."""
    own = Path(sys.executable).with_name("gpunode")
    if not own.exists():
        return f"{sys.executable} -m gpunode"
    return "gpunode" if shutil.which("gpunode") == str(own) else str(own)
