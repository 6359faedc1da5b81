"""The host's paths and commands: the only module that knows its root and the environment of commands."""

import errno
import fcntl
import glob
import os
import signal
import struct
import subprocess
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from gpunode.agent.failures import Failure

Message = Dict[str, Any]
GET_FLAGS, IMMUTABLE = 0x80086601, 0x10  # of linux/fs.h: FS_IOC_GETFLAGS, FS_IMMUTABLE_FL
ROOT = os.environ.get("GPUNODE_ROOT", "").rstrip("/")


def below(path: str) -> str:
    """Where an absolute path of the host really is."""
    return ROOT + path


def unrooted(real: str) -> str:
    """The host's absolute path of a real one: the inverse of `below`."""
    return real[len(ROOT) :]


def resolve(path: str) -> str:
    """The host's path with every symbolic link followed, as it is below ROOT."""
    todo, done = path.split("/")[::-1], ""
    for _ in range(4000):
        if not todo:
            return done or "/"
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = os.path.dirname(done).rstrip("/")
        elif os.path.islink(below(done + "/" + part)):
            target = os.readlink(below(done + "/" + part))
            todo.extend(target.split("/")[::-1])
            done = "" if target.startswith("/") else done
        else:
            done += "/" + part
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def text_of(path: str) -> Optional[str]:
    """A small file's text, None when it cannot be read."""
    try:
        with open(below(path), "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def line_of(path: str) -> str:
    """The first line of a file, empty when there is none."""
    return (text_of(path) or "").split("\n", 1)[0].strip()


def number(text: str, place: str) -> int:
    """The number that a file or a program gives; 0 for an empty text. Raises OSError with a sentence."""
    try:
        return int(text or 0)
    except ValueError:
        raise OSError("%s: expected a number, got %.60r" % (place, text)) from None


def glob_of(pattern: str) -> List[str]:
    """The host's paths that an absolute pattern matches, sorted."""
    if "**" in pattern or "[" in pattern or "?" in pattern:
        return sorted(unrooted(path) for path in glob.glob(below(pattern), recursive=True))
    paths = [""]
    # glob.glob compiles each part to a regular expression: most of what it costs.
    for part in pattern.split("/")[1:]:
        paths = [
            folder + "/" + name
            for folder in paths
            for name in (names_in(folder) if "*" in part else [part])
            if matches(name, part)
        ]
    return sorted(path for path in paths if os.path.lexists(below(path)))


def names_in(folder: str) -> List[str]:
    """The names in a folder of the host, in no order; none where it cannot be read."""
    try:
        return os.listdir(below(folder or "/"))
    except OSError:
        return []


def matches(name: str, pattern: str) -> bool:
    """True if the pattern, in which only `*` has a meaning, matches a file's name."""
    if "*" not in pattern:
        return name == pattern
    first, *middle, end = pattern.split("*")
    if len(name) < len(first + end) or not (name.startswith(first) and name.endswith(end)):
        return False
    rest = name[len(first) : len(name) - len(end)]
    for piece in middle:
        _, cut, rest = rest.partition(piece) if piece else ("", "*", rest)
        if not cut:
            return False
    return first != "" or not name.startswith(".")


def environment() -> Dict[str, str]:
    """For commands: English output, no questions, and sbin in PATH, which may be missing in a non-login shell."""
    env = dict(
        os.environ,
        LC_ALL="C",
        LANGUAGE="C",
        DEBIAN_FRONTEND="noninteractive",
        APT_LISTCHANGES_FRONTEND="none",
        NEEDRESTART_MODE="l",  # `a` would restart containerd and the kubelet under the pods
        NEEDRESTART_SUSPEND="1",
    )
    if not ROOT:
        env["PATH"] = (
            env.get("PATH", "") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin"
        )
    return env


ENV = environment()


class Answer(NamedTuple):
    status: int  # 127: no such command; 124: it did not answer in time
    out: str
    err: str

    @property
    def message(self) -> str:
        """Its stderr, else its stdout, else its status."""
        return (self.err.strip() or self.out.strip()) or "exit status %d" % self.status


def run(*argv: str, timeout: Optional[float] = 30, stdin: Any = subprocess.DEVNULL) -> Answer:
    """Run a command to its end; does not raise for its status, its absence or a timeout."""
    program = have(argv[0])
    if program is None:
        return Answer(127, "", argv[0] + ": not found")
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        (program, *argv[1:]), stdin=stdin, stdout=pipe, stderr=pipe, env=ENV, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=2)
        except subprocess.TimeoutExpired:  # it hangs in the kernel, as nvidia-smi does on a GPU that is gone
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
            process.poll()
        return Answer(124, "", "%s did not answer within %d seconds" % (argv[0], timeout or 0))
    except BaseException:  # an abort
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        raise
    return Answer(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def have(command: str) -> Optional[str]:
    """Its path, as shutil.which finds it; importing that costs a probe more than all of its look-ups."""
    folders = [""] if os.path.dirname(command) else ENV["PATH"].split(":")
    for path in [os.path.join(folder, command) for folder in folders]:
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def has_systemd() -> bool:
    """True if systemd runs this host; False for another root."""
    return not ROOT and os.path.isdir("/run/systemd/system")


def run_transient(*arguments: str) -> Answer:
    """Run systemd-run with these arguments. Before systemd 236 a unit that failed stays until `systemctl reset-failed`."""
    answer = run("systemd-run", "--quiet", "--collect", *arguments)
    if answer.status and "unrecognized option '--collect'" in answer.message:
        return run("systemd-run", "--quiet", *arguments)
    return answer


def last(text: str, count: int) -> List[str]:
    """The last lines of a text that are not blank."""
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


@contextmanager
def naming(real: str) -> Iterator[None]:
    """Errors of this block are of this file where they name none, as those of a write."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or real
        raise


def from_os_error(error: OSError) -> Failure:
    codes = {errno.ENOSPC: "disk-full", errno.EDQUOT: "disk-full", errno.EROFS: "read-only"}
    path = str(error.filename or "")
    if error.errno in codes and error.filename2:
        path = str(error.filename2)  # of a copy: the target
    if error.errno == errno.EPERM:
        for place in filter(None, (error.filename2, error.filename, os.path.dirname(path))):
            if is_immutable(str(place)):
                sentence = "%s is immutable: a file attribute (see lsattr) blocks every change" % unrooted(
                    str(place)
                )
                return Failure("immutable", sentence)
    where = unrooted(path) + ": " if path else ""
    return Failure(codes.get(error.errno or 0, "os-error"), where + (error.strerror or str(error)))


def is_immutable(real: str) -> bool:
    """Whether a file or folder has the attribute that `chattr +i` sets."""
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        flags = fcntl.ioctl(descriptor, GET_FLAGS, struct.pack("l", 0))
        return bool(struct.unpack("l", flags)[0] & IMMUTABLE)
    except OSError:  # its file system has no attributes
        return False
    finally:
        os.close(descriptor)


def failure_of(error: BaseException) -> Failure:
    if isinstance(error, Failure):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Failure("aborted", "it was ended by `gpunode abort` or by a shutdown of the machine")
    if isinstance(error, OSError):
        return from_os_error(error)
    import traceback

    return Failure("internal", "a bug in gpunode's agent: %r" % error, last(traceback.format_exc(), 12))
