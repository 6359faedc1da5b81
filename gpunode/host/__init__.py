"""Hosts: connections, and the protocol with the agent there."""

import sys

# paramiko takes it for `Match exec` alone, which is left to ssh (`ssh -G`); with it, paramiko's import takes twice as long.
sys.modules.setdefault("invoke", None)  # type: ignore[arg-type]
