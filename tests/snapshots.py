"""What is on a host, to compare before and after: of simulated hosts, and of the lab's, where the text of `files` runs in the host."""

import re
from collections.abc import Mapping, Sequence


def files(base: str, *mounts: str) -> dict[str, str]:
    """Mode, owner, and digest or target of each file and link below `base`, by `file PATH`; mode and owner by `folder PATH`. Of other
    file systems only those mounted at `mounts`. Needs the standard library alone."""
    import hashlib
    import os
    from contextlib import suppress

    contents, folders = {}, [base, *mounts]
    while folders:
        folder, entries = folders.pop(), []
        with suppress(FileNotFoundError):  # removed meanwhile, as each of its entries may be
            entries = list(os.scandir(folder))
        for entry in entries:
            with suppress(FileNotFoundError):
                kind, text, status = "file", "", entry.stat(follow_symlinks=False)
                if entry.is_symlink():
                    text = os.readlink(entry.path)
                elif entry.is_dir():
                    kind = "folder"
                    folders += [entry.path] if status.st_dev == os.lstat(folder).st_dev else []
                elif entry.is_file():
                    with open(entry.path, "rb") as file:
                        text = hashlib.sha256(file.read()).hexdigest()
                else:  # a socket, a device
                    continue
                name = f"{kind} /{os.path.relpath(entry.path, base)}"
                contents[name] = f"{status.st_mode:o} {status.st_uid}:{status.st_gid} {text}"
    return contents


def differences(before: Mapping[str, str], after: Mapping[str, str], may: Sequence[str]) -> list[str]:
    """The names whose value is not as before, but for those that one of the patterns matches as a whole."""
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return [name for name in names if not any(re.fullmatch(pattern, name) for pattern in may)]
