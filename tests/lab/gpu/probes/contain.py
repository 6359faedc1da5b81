"""Runs a command in a container under nvidia-container-runtime, on a copy-free view of this host's own root.

Arguments: NVIDIA_VISIBLE_DEVICES, then the command. /run, /proc, /dev, /sys and /lib/firmware are the container's own.
"""

import json
import os
import subprocess
import sys
import tempfile

devices, command = sys.argv[1], sys.argv[2:]
with tempfile.TemporaryDirectory(dir="/tmp") as bundle:
    root = f"{bundle}/rootfs"
    os.mkdir(root)
    subprocess.run(["mount", "--bind", "/", root], check=True)
    try:
        subprocess.run(["runc", "spec"], cwd=bundle, check=True)
        with open(f"{bundle}/config.json") as file:
            spec = json.load(file)
        spec["process"].update(terminal=False, args=command)
        spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={devices}")
        spec["root"]["readonly"] = False
        spec["mounts"].append({"destination": "/usr/lib/firmware", "type": "tmpfs", "source": "tmpfs"})
        with open(f"{bundle}/config.json", "w") as file:
            json.dump(spec, file)
        name = f"lab-probe-{os.getpid()}"
        # NVIDIA's runtime edits the bundle when it creates; runc then runs what it made of it.
        subprocess.run(
            ["nvidia-container-runtime", "create", "--bundle", bundle, name],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run(["runc", "delete", "--force", name], check=True)
        ended = subprocess.run(["runc", "run", "--bundle", bundle, name], check=False)
    finally:
        subprocess.run(["umount", root], check=True)
sys.exit(ended.returncode)
