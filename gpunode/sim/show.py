"""The show: gpunode's own commands on simulated hosts, each with a sentence that explains it."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from pathlib import Path

from gpunode.sim import faults, folder, screens
from gpunode.sim.demo import Demo
from gpunode.sim.screens import Screen
from gpunode.wording import page

GPUNODE = (sys.executable, "-m", "gpunode")
WIDEST = 100
WORDS_A_SECOND, LONGEST = 5.0, 2.0  # pause to read; the text stays visible while the command runs
MANY = 8  # with more hosts, output is shortened
REPORT = "report.html"


class Show:
    """Explains and runs the commands. Pauses only on a terminal. `verbose`: shows all that they print."""

    def __init__(self, demo: Demo, *, fast: bool, verbose: bool = False) -> None:
        self.demo = demo
        self._whole = folder.whole(demo.folder)
        self._reading = sys.stdout.isatty() and not fast
        self._verbose = verbose

    def play(self, fault: str | None) -> int:
        """Play everything; 0 if every command ended as announced, else 1."""
        hosts = len(self.demo.states)
        good = provisionable(self.demo)
        odd = hosts - len(good)
        these = ("--limit", ",".join(good)) if odd else ()
        self._title()
        if hosts > 1:
            self.say(
                "Plan",
                f"{hosts} hosts without NVIDIA's software. What would change on one of them, and why:",
            )
        else:
            self.say("Plan", "One host without NVIDIA's software. What would change on it, and why:")
        first = (good or list(self.demo.states))[0]
        done = self.run("plan", "inventory.yaml", "--limit", first, screen=screens.plan) in (0, 4)
        rest = f" {odd} of them cannot become one, which is refused with the reason." if odd else ""
        aim = (
            ", to verified GPU nodes."
            if self._whole
            else "; the inventory names no plugin, so the cluster is not changed."
        )
        self.say("Provision", f"All hosts at once{aim}{rest} `--yes` accepts every plan:")
        provision = ("provision", "inventory.yaml", "--yes", "--html", REPORT)
        done &= self.run(*provision, screen=screens.results) == (4 if odd else 0)
        if not good:
            return 0 if done else 1
        chain = (
            "to a finished CUDA pod, link by link"
            if self._whole
            else "to the kubelet, without the cluster's links"
        )
        self.say("Verify", f"The chain from the PCI bus {chain}:")
        verify = ("verify", "inventory.yaml", *(these if hosts <= MANY else ("--limit", good[0])))
        done &= self.run(*verify, screen=screens.chains) == 0
        self.say("Label", "Nodes by what their GPUs are, for node selectors:")
        done &= self.run("label", "inventory.yaml", "--accelerator", *these) == 0
        self.say("Again", "A second run has nothing to do:")
        done &= self.run("plan", "inventory.yaml", "--exit-code", *these) == 0
        if fault:
            done &= self.broken(fault)
        return 0 if done else 1

    def broken(self, fault: str) -> bool:
        """Break one host, let verify find the link, and let provision fix it. False if one of them does not."""
        host = faults.inflict(fault, list(self.demo.states.values()))
        broken = faults.FAULTS[fault]
        self.say("Break", f"On {host} {broken.happened}. verify names the first broken link:")
        found = self.run("verify", "inventory.yaml", "--limit", host, screen=list) == 1
        if (link := self._first_broken(host)) != broken.link:
            print(f"verify names {link or 'no link'}; expected is {broken.link}", flush=True)
            found = False
        if broken.by_hand:
            self.say("Fix", broken.by_hand)
            return found
        self.say("Fix", "provision repairs it:")
        provision = ("provision", "inventory.yaml", "--yes", "--limit", host)
        return self.run(*provision, screen=screens.results) == 0 and found

    def _first_broken(self, host: str) -> str:
        """The layer of the first broken link, from verify's JSON; empty string for none."""
        words = [*GPUNODE, "verify", "inventory.yaml", "--limit", host, "--no-run", "--json"]
        _, output, _ = self.demo.run(words, capture=True)
        links = (line for line in map(json.loads, output.splitlines()) if line["type"] == "link")
        return next((str(link["layer"]) for link in links if link["status"] == "broken"), "")

    def say(self, head: str, text: str) -> None:
        """Print a step's head and sentence, and pause for reading."""
        width = min(shutil.get_terminal_size().columns, WIDEST)
        print()
        for line in textwrap.wrap(f"{head}. {text}", width):
            print(_bold(line) if sys.stdout.isatty() else line)
        sys.stdout.flush()
        self._pause(len(text.split()) / WORDS_A_SECOND)

    def run(self, *arguments: str, screen: Screen = screens.shorten) -> int:
        """Run gpunode as a user would; returns its exit code. `screen` selects the lines of output to show."""
        print(f"$ gpunode {' '.join(arguments)}", flush=True)
        quiet = not (self._verbose or sys.stderr.isatty())  # a terminal shows progress live
        code, output, errors = self.demo.run([*GPUNODE, *arguments], capture=not self._verbose, quiet=quiet)
        if not self._verbose:
            progress = errors.splitlines()
            shown = [*screen(output.splitlines()), *(progress if code == 1 else screens.ends(progress))]
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


def _bold(line: str) -> str:
    return f"\033[1m{line}\033[0m"


def farewell(demo: Demo, name: str) -> str:
    """Commands for a demo that keeps running; they work exactly as printed. `name`: its own."""
    gpunode, good = _called(), provisionable(demo)
    these = f" --limit {','.join(good)}" if len(good) < len(demo.states) else ""
    commands = [f"cd {demo.folder}", f"{gpunode} verify inventory.yaml{these}"]
    if shutil.which("kubectl"):
        commands.append("KUBECONFIG=kubeconfig kubectl get nodes")
    first = (good or list(demo.states))[0]
    if first in demo.metrics:
        commands.append(f"curl -s {demo.metrics[first]}   # {first}; the others' are in demo.json")
    if shutil.which("ssh"):
        options = f"-i id_ed25519 -o UserKnownHostsFile=known_hosts -p {demo.port(first)}"
        commands.append(f"ssh {options} demo@127.0.0.1 systemctl cat kubelet.service   # {first}")
    shown = "\n".join(f"  {command}" for command in commands)
    return f"""
It keeps running, as {name}. Commands to try:

{shown}

The hosts' files are in hosts/*/root. Edit them there: ssh cannot write files. The hosts' ports are in inventory.yaml.
`{gpunode} demo break LINK {name}` breaks a host, `{gpunode} demo add {name}` adds one that is bare.
For another driver write `driver: "580"` below `defaults:` in inventory.yaml, and provision again.
To end it:

  {gpunode} demo stop {name}

Next: "Break it, and let it be fixed" in {page("tutorial.md")}, and then a host of yours."""


def ending(code: int, report: Path | None, *, whole: bool) -> str:
    """What was shown and what to do next, for a demo that ends. `whole`: with a device plugin."""
    seen = "from bare hosts to verified GPU nodes"
    if not whole:
        seen = "only the hosts' part, since the inventory names no cluster.plugin"
    if code:
        seen = "something did not end as expected; see above"
    page = f"\nThe run as one page, with every diff: {report}" if report else ""
    return f"""
That was the demo: {seen}. Its hosts and its cluster are gone.{page}
Next: `{_called()} demo --keep` to try commands of your own on them; README.md, "Use it", for hosts of yours."""


def provisionable(demo: Demo) -> list[str]:
    """The hosts that can become GPU nodes."""
    machines = [state.machine() for state in demo.states.values()]
    return [machine.name for machine in machines if machine.gpus]


def _called() -> str:
    """The command that starts this gpunode from a shell."""
    own = Path(sys.executable).with_name("gpunode")
    if not own.exists():
        return f"{sys.executable} -m gpunode"
    return "gpunode" if shutil.which("gpunode") == str(own) else str(own)
