"""Stand-ins for the driver's two libraries, as ctypes returns them: the lowest layer that a container uses."""
