"""The simulated hosts: what they are, what is on them, and the SSH servers in front of them."""
