"""This machine: its files, child processes and archives, within limits."""
