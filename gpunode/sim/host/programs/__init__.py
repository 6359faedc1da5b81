"""The programs of a simulated host: read-only ones are shell scripts over prepared answers, the others Python."""
