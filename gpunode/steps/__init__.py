"""Planners of a host's components, one module each.

Each has `plan(facts, desired)`, a pure function that returns its changes, () when the host is right, and
WATCH: what a probe reads for it.
"""
