"""Whole files of a host, as changes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gpunode.errors import CannotPlan
from gpunode.model import Checker, Expected, Facts, File, RemoveFile, WriteFile
from gpunode.planning.templates import template
from gpunode.wording import several

LISTED, SHORT = 2, 80  # lines of a file that a fault names, and their characters


def text(facts: Facts, path: str) -> str | None:
    """A file's text, None when it does not exist. Raises CannotPlan for a file that could not be read."""
    if not exists(facts, path):
        return None
    file = facts.files[path]
    if file.content is None:
        raise CannotPlan(
            f"{path} cannot be planned on: {file.error or 'it is larger than 256 KiB or not UTF-8'}",
            hint="Check the file on the host, then run again; gpunode left it unchanged.",
        )
    return file.content


def exists(facts: Facts, path: str) -> bool:
    """Whether a probe has seen the file."""
    file = facts.files.get(path)
    return file is not None and file.exists


def below(facts: Facts, folder: str) -> tuple[str, ...]:
    """The existing files whose paths begin with this, by name."""
    return tuple(
        sorted(path for path, file in facts.files.items() if file.exists and path.startswith(folder))
    )


def overlay(facts: Facts, texts: Mapping[str, str]) -> Facts:
    written = {path: File(path, exists=True, content=content) for path, content in texts.items()}
    return replace(facts, files={**facts.files, **written})


def write(
    facts: Facts,
    path: str,
    content: str,
    why: str,
    *,
    wrong: str = "",
    check: Checker | None = None,
    expected: Expected | None = None,
) -> tuple[WriteFile, ...]:
    """Write this content; () when the file has it. `wrong`: the fault of an existing file; without it, where it differs."""
    before = text(facts, path)
    if before == content:
        return ()
    wrong = f"is missing ({why})" if before is None else wrong or f"{_differ(before, content)}: {why}"
    fault = f"{path} {wrong}"
    return (WriteFile(path, content, why, before=before, check=check, expected=expected, fault=fault),)


def _differ(before: str, after: str) -> str:
    """How a file differs: by its lines if these are few and short."""
    old, new = before.splitlines(), after.splitlines()
    gone, missing = (
        [line for line in some if line.strip() and line not in other]
        for some, other in ((old, new), (new, old))
    )
    if len(gone) > LISTED or len(missing) > LISTED or any(len(line) > SHORT for line in (*gone, *missing)):
        return f"differs from the planned file ({several(max(len(gone), len(missing)), 'line')})"
    has, lacks = (" and ".join(f"`{line.strip()}`" for line in some) for some in (gone, missing))
    parts = [f"has {has}"] if has else []
    parts += [f"lacks {lacks}"] if lacks else []
    same = Counter(before.split("\n")) == Counter(after.split("\n"))
    return ", ".join(parts) or (
        "has its lines in another order" if same else "differs in blank or repeated lines, or in line ends"
    )


def write_own(facts: Facts, path: str, why: str, **values: object) -> tuple[WriteFile, ...]:
    """Write a file that is gpunode's alone, from the template that mirrors its path."""
    return write(facts, path, template(path.lstrip("/"), **values), why)


def remove(path: str, before: str, why: str) -> RemoveFile:
    return RemoveFile(path, before, why, fault=f"{path} is in the way: {why}")


def is_newer(facts: Facts, path: str, unit: str) -> bool:
    """Whether a file was changed after a unit became active, so that the unit has not seen it."""
    file, state = facts.files.get(path), facts.units.get(unit)
    if file is None or file.mtime is None or state is None or state.active_since is None:
        return False
    # A file written while the clock was ahead is newer than every later process: it would cause endless restarts.
    return state.active_since < file.mtime <= facts.time


def at(path: str, text: str, offset: int) -> str:
    """`path:line:column` of an offset, counted as editors do."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return f"{path}:{line}:{column}"
