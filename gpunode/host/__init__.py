"""Hosts: connections, and the protocol with the agent there."""
