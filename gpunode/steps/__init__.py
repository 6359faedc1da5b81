"""What makes a host right, one module a component.

Each has `plan(facts, desired)`, a pure function to the changes it wants, () when it is right, and FILES, UNITS,
PACKAGES: what a probe must look at for it.
"""
