"""A real cluster on one machine: see README.md beside this file."""
