"""Stand-ins of the driver's two libraries, as ctypes would give them: the lowest layer that a container sees."""
