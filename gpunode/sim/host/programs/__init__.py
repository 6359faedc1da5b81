"""The programs of a simulated host: what only looks is a shell script over prepared answers, what changes is Python."""
