"""The show: what gpunode does, told in few words around its own commands, on simulated hosts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence

from gpunode.sim import faults
from gpunode.sim.demo import Demo

WIDEST = 100
WORDS_A_SECOND = 5.0
LINES = 16
MANY = 8  # hosts, of which not every one is shown to the end


class Show:
    """Tells and runs. Pauses only where somebody reads."""

    def __init__(self, demo: Demo, *, fast: bool) -> None:
        self.demo = demo
        self._reading = sys.stdout.isatty() and not fast

    def play(self, fault: str | None) -> int:
        """The whole of it; the exit code is 0 when everything went as it is told."""
        hosts = len(self.demo.states)
        good = self._provisionable()
        odd = hosts - len(good)
        these = ("--limit", ",".join(good)) if odd else ()
        many = _shortened if hosts > MANY else None
        self._title()
        if hosts > 1:
            self.say(
                "Plan",
                f"{hosts} hosts, bare of NVIDIA's software. What would change on one of them, and why:",
            )
        else:
            self.say("Plan", "One host, bare of NVIDIA's software. What would change on it, and why:")
        done = self.run("plan", "inventory.yaml", "--limit", (good or list(self.demo.states))[0]) in (0, 4)
        told = f" {odd} of them cannot become one, and are told why." if odd else ""
        self.say("Provision", f"All hosts at once, to verified GPU nodes.{told} `--yes` accepts every plan:")
        done &= self.run("provision", "inventory.yaml", "--yes", last=_results) == (4 if odd else 0)
        if not good:
            return 0 if done else 1
        self.say("Verify", "The chain from the PCI bus to a finished CUDA pod, link by link:")
        done &= self.run("verify", "inventory.yaml", *(these if hosts <= MANY else ("--limit", good[0]))) == 0
        self.say("Label", "Nodes by what their GPUs are, for node selectors:")
        done &= self.run("label", "inventory.yaml", "--accelerator", *these, last=many) == 0
        self.say("Again", "A second run has nothing to do:")
        done &= self.run("plan", "inventory.yaml", "--exit-code", *these, last=many) == 0
        if fault:
            done &= self.broken(fault)
        return 0 if done else 1

    def broken(self, fault: str) -> bool:
        """Break one host, let verify find it, and have it mended."""
        try:
            host = faults.inflict(fault, list(self.demo.states.values()))
        except LookupError as error:
            self.say("Break", f"{error}.")
            return False
        self.say("Break", f"On {host} {faults.FAULTS[fault].story}. Verify names the first broken link:")
        found = self.run("verify", "inventory.yaml", "--limit", host) == 1
        if faults.FAULTS[fault].way:
            self.say("Mend", faults.FAULTS[fault].way)
            return found
        self.say("Mend", "And provision puts it right:")
        return self.run("provision", "inventory.yaml", "--yes", "--limit", host) == 0 and found

    def say(self, head: str, text: str) -> None:
        """A step's head and sentence, and time to read them."""
        width = min(shutil.get_terminal_size().columns, WIDEST)
        print()
        for line in textwrap.wrap(f"{head}. {text}", width):
            print(_bold(line) if sys.stdout.isatty() else line)
        sys.stdout.flush()
        self._pause(len(text.split()) / WORDS_A_SECOND)

    def run(self, *arguments: str, last: Callable[[Sequence[str]], Sequence[str]] | None = None) -> int:
        """Run gpunode as a user would; `last` chooses what is shown of its results."""
        print(f"$ gpunode {' '.join(arguments)}", flush=True)
        words = [sys.executable, "-m", "gpunode", *arguments]
        if last is None:
            code = subprocess.run(words, cwd=self.demo.folder, check=False).returncode
        else:
            done = subprocess.run(words, cwd=self.demo.folder, check=False, stdout=subprocess.PIPE, text=True)
            code = done.returncode
            print("\n".join(last(done.stdout.splitlines())), flush=True)
        self._pause(0.8)
        return code

    def _title(self) -> None:
        text = (
            "This is a simulation: the hosts are folders of this computer behind real SSH servers, the cluster is a "
            "small stand-in, and the GPUs do not exist. gpunode does not know: it does its real work."
        )
        self.say("gpunode demo", text)

    def _provisionable(self) -> list[str]:
        machines = [state.machine() for state in self.demo.states.values()]
        return [machine.name for machine in machines if machine.gpus and not machine.rpm]

    def _pause(self, seconds: float) -> None:
        if self._reading:
            time.sleep(min(seconds, 3.0))


def _results(lines: Sequence[str]) -> Sequence[str]:
    """Refusals, failures and the pods' results: the plan was shown before."""
    heads = [number for number, line in enumerate(lines) if line.startswith("NODE ")]
    bad = [line for line in lines[: heads[-1] if heads else None] if "✗" in line]
    return [*_shortened(bad), *_shortened(lines[heads[-1] :] if heads else lines)]


def _shortened(lines: Sequence[str]) -> Sequence[str]:
    """The beginning, when there are many."""
    if len(lines) <= LINES:
        return lines
    return [*lines[: LINES - 1], f"… and {len(lines) - LINES + 1} lines more"]


def _bold(line: str) -> str:
    return f"\033[1m{line}\033[0m"


def farewell(demo: Demo) -> str:
    """What a user can do with a demo that goes on."""
    return f"""
It goes on. To play with it:

  cd {demo.folder}
  gpunode verify inventory.yaml
  KUBECONFIG=kubeconfig kubectl get nodes
  ssh -i id_ed25519 -o UserKnownHostsFile=known_hosts -p PORT demo@127.0.0.1   (ports: inventory.yaml)

Its hosts are the folders in hosts/*/root. To end it:  gpunode demo stop"""
