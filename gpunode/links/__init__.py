"""The chain from the PCI bus to a finished pod: a folder a link."""
