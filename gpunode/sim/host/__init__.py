"""The simulated hosts: their machines, programs and SSH servers."""
