"""Hosts of the lab with the layout of old systems: what such a system has in its files, its sources and its packages' names.

Kernel, systemd, C library and package manager stay Debian 12's.
"""
