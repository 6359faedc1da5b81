"""The configuration of a kube-scheduler that is a static pod: an extender added to it, and taken out again. Pure.

What is added to others' files are whole lines that end with a mark. Without these lines a file is as it was, byte for byte.
"""
