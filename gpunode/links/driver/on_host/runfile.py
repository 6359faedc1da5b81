"""NVIDIA's own installer (.run): the changes `install_driver` and `uninstall_driver`."""

import os
import re
import shutil
import time
from typing import Any, List

from gpunode.agent.failures import Failure
from gpunode.agent.files import CHUNK
from gpunode.agent.package_manager import run_exclusively
from gpunode.agent.record import UNPACKED, Run
from gpunode.agent.system import Message, below, have, last, text_of
from gpunode.links.driver.on_host.gpus import read_installed_run

LOGS = {"install": "/var/log/nvidia-installer.log", "uninstall": "/var/log/nvidia-uninstall.log"}
# The installer ends with 0 or 1 only; its log has the cause. Codes by its sentences (its misc.c, kernel.c, install-from-cwd.c).
CAUSES = (
    ("disk-full", r"No space left on device"),
    ("driver-present", r"alternate driver installation|using a different installer"),
    ("nouveau-loaded", r"Nouveau kernel driver is currently in use|already bound to [Nn]ova"),
    ("compiler-missing", r"Unable to find the development tool|libc header files|cc_sanity_check.*fail"),
    (
        "headers-missing",
        r"Unable to find the kernel source tree|kernel (header file|source path|output path) ",
    ),
    ("module-unsigned", r"not signed by a key|Required key not available|Key was rejected"),
    ("module-in-use", r"appears to be already loaded|Unable to unload"),
    ("module-failed", r"Unable to load the (kernel module|'nvidia)"),
    (
        "module-build-failed",
        r"kernel module was not created|([Ee]rror|[Ff]ail)[^\n]*([Bb]uilding|DKMS|dkms)|dkms[^\n]*[Ff]ail",
    ),
)


def fetch(this: Run, change: Message) -> None:
    """Have the installer's file on the host, checked, before the first change is made: the driver that is there may go for it."""
    if change["kind"] != "install_driver":
        return
    path = place(this, change)
    if change.get("payload") is None:
        download(this, change["url"], path)
    actual = digest(path)
    if actual != change["sha256"]:
        sentence = "the installer's SHA-256 is %s, not %s: it was not run" % (actual, change["sha256"])
        raise Failure("checksum-mismatch", sentence, ["nothing was changed"])


def place(this: Run, change: Message) -> str:
    """Where the file is: among the payloads, which go when the apply has ended, or the next one begins."""
    return this.payload(change["payload"]) if change.get("payload") is not None else this.payload("driver")


def install_driver(this: Run, change: Message) -> Message:
    """The file is removed at the end, with all that it has unpacked."""
    path = place(this, change)
    folder = below(this.record + "/" + UNPACKED)  # /tmp is often small, or mounted noexec
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        this.progress("NVIDIA's installer builds and installs %s" % change["version"])
        command = ["sh", path, *options(change)]
        status, text = run_exclusively(
            this, command, what="NVIDIA's installer", env={"TMPDIR": folder}, logs_to=LOGS["install"]
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.unlink(path)
    installed = read_installed_run()
    # It ends with 0 where it cancels.
    if status or installed is None or installed["version"] != change["version"]:
        raise failure("install", "install driver " + change["version"], status, text)
    return {"built": installed["built"]}


def options(change: Message) -> List[str]:
    """`--silent` answers all questions with their defaults. Who uses the GPUs was asked before: X on another GPU may go on."""
    arguments = ["--silent", "--no-x-check"]
    arguments += ["--dkms"] if have("dkms") else []
    version = [int(part) for part in change["version"].split(".")]
    if version >= [555, 42]:
        arguments.append("--kernel-module-type=" + change["flavour"])
    elif version >= [515] and change["flavour"] == "open":
        arguments.append("--kernel-module-build-directory=kernel-open")
    if change["beside"]:
        arguments += ["--no-nouveau-check", "--allow-installation-with-running-driver", "--skip-module-load"]
    return arguments


def uninstall_driver(this: Run, change: Message) -> Message:
    status, text = run_exclusively(
        this, ["nvidia-uninstall", "--silent"], what="nvidia-uninstall", logs_to=LOGS["uninstall"]
    )
    if status or read_installed_run() is not None:  # it ends with 0 even where it fails
        raise failure("uninstall", "uninstall driver " + change["version"], status, text)
    return {}


def failure(act: str, task: str, status: int, text: str) -> Failure:
    """With the code of the first cause that the output or the log names."""
    log = text_of(LOGS[act]) or ""
    everything = text + log
    code = next((code for code, cause in CAUSES if re.search(cause, everything)), "installer-failed")
    errors = [line for line in everything.splitlines() if re.match(r"\s*(->)?\s*ERROR", line)]
    why = re.sub(r"^\s*(->)?\s*ERROR:\s*", "", errors[0]) if errors else "exit status %d" % status
    sentence = "NVIDIA's installer did not %s: %s" % (task, why)
    return Failure(code, sentence, [*errors[:5], *last(log or text, 8), "all of it: " + LOGS[act]])


def digest(path: str) -> str:
    import hashlib  # only here: it loads OpenSSL, for which an apply of other changes must not wait

    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            hasher.update(chunk)
    return hasher.hexdigest()


def download(this: Run, url: str, path: str) -> None:
    """Fetch `url` into a file for root alone."""
    from http.client import HTTPException  # only here: a probe must not wait for these imports
    from urllib.request import urlopen

    from gpunode.agent.redaction import redact

    reported, size = time.monotonic(), 0
    try:
        with urlopen(url, timeout=60) as answer, open(path, "wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            for chunk in iter(lambda: answer.read(CHUNK), b""):
                size += save(file, chunk)
                if time.monotonic() - reported > 2:
                    reported = time.monotonic()
                    this.progress("downloading the driver", round(100.0 * size / total, 1) if total else None)
    except Unsaved as error:
        raise error.cause from None
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(getattr(error, "reason", None), "strerror", None) or error
        raise Failure("download-failed", redact("%s: %s" % (url, why))) from None
    if total and size < total:
        raise Failure("download-failed", redact("%s ended after %d of %d bytes" % (url, size, total)))


class Unsaved(Exception):
    """The file could not be written; both ends of a download raise OSError."""

    def __init__(self, cause: OSError) -> None:
        super(Unsaved, self).__init__(str(cause))
        self.cause = cause


def save(file: Any, chunk: bytes) -> int:
    try:
        return int(file.write(chunk))
    except OSError as error:
        raise Unsaved(error) from None
