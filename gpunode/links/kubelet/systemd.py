"""systemd's files, read as systemd reads them: a unit with its drop-ins, its command lines, and environment files. Pure.

systemd.syntax(7), systemd.service(5) under COMMAND LINES, systemd.exec(5); src/basic/extract-word.c and env-file.c for what is
missing there.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpunode.model import Facts, UnitSetting
from gpunode.planning import files

# Where a unit may be. systemd takes it, and a drop-in of a name, from the last of these that has it; the first two are
# one folder on most hosts.
FOLDERS = ("/usr/lib", "/lib", "/usr/local/lib", "/run", "/etc")
RANKED = ("/etc/", "/run/", "/usr/local/lib/", "/")


def unit_patterns(unit: str) -> tuple[str, ...]:
    """The files that can be the unit or a drop-in of it."""
    places = (f"{folder}/systemd/system/{unit}" for folder in FOLDERS)
    return tuple(path for place in places for path in (place, f"{place}.d/*.conf"))


def unit_texts(facts: Facts, unit: str) -> Mapping[str, str]:
    """The texts of unit and drop-ins in the order in which systemd reads them, those not loaded yet among them."""
    if facts.kubelet is None:
        return {}
    name, kind = (re.escape(part) for part in unit.rsplit(".", 1))
    own = re.compile(rf"/systemd/system/{name}\.{kind}(?:\.d/(?:[^/]+\.conf))?$")
    # What `systemctl cat` writes above each file.
    header = re.compile(
        rf"^# (/\S+/(?:{name}\.{kind}|(?:{name}\.)?{kind}\.d/[^/\s]+\.conf))[ \t\r]*\n", re.MULTILINE
    )
    present = {path for path, file in facts.files.items() if file.exists and own.search(path)}
    before, *parts = header.split(facts.kubelet.unit_text)
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    if before.strip() and "" not in map(_drop_in, texts):
        texts[""] = before
    for path in sorted(present - set(texts)):
        same = next((other for other in texts if _drop_in(other) == _drop_in(path)), None)
        if same is None or _rank(path) < _rank(same):
            texts = {path: "", **{other: text for other, text in texts.items() if other != same}}
    texts = {path: files.text(facts, path) or "" if path in present else text for path, text in texts.items()}
    return {path: texts[path] for path in sorted(texts, key=_drop_in)}


def _drop_in(path: str) -> str:
    """The name of a drop-in, which one of the same name in another folder replaces; empty for the unit itself."""
    match = re.search(r"\.d/([^/]+)$", path)
    return match[1] if match else ""


def _rank(path: str) -> int:
    return next((rank for rank, folder in enumerate(RANKED) if path.startswith(folder)), len(RANKED))


# --- Units ----------------------------------------------------------------------------------------------

SHELLS = ("sh", "bash", "dash")
PREFIXES = "@-:+!"  # of ExecStart's program
SPECIFIERS = {"%": "%", "n": "{}.service", "N": "{}", "p": "{}", "t": "/run", "E": "/etc", "S": "/var/lib"}
KNOWN = "aAbBCdEfgGhHiIjJlLmMnNopqsStTuUvVwWyY%"
ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "s": " ",
    "\\": "\\",
    '"': '"',
    "'": "'",
}
ESCAPED = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")
SPACE = " \t\n\r"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a setting's value, and where its text begins and ends in that value."""

    value: str
    start: int
    stop: int
    closed: bool = True
    known: bool = True  # all its escapes


def read_unit(text: str) -> tuple[UnitSetting, ...]:
    """The settings of [Service], in their order, without lines that systemd ignores."""
    settings: list[UnitSetting] = []
    section, at, key, value, start, stop = "", 0, "", "", 0, 0
    for line in re.split(r"(?<=\n)", text):
        content = line.rstrip("\n").removesuffix("\r")
        begin, at = at, at + len(line)
        if content.lstrip(SPACE).startswith(("#", ";")):
            continue  # within a continued line too
        goes_on = (len(content) - len(content.rstrip("\\"))) % 2 == 1
        part = f"{content[:-1]} " if goes_on else content
        if key:
            value, stop = value + part, begin + len(content)
        elif content.lstrip(SPACE + "\ufeff").startswith("["):
            section = content.strip(SPACE + "\ufeff")
        elif "=" in part and section == "[Service]":
            name, _, value = part.partition("=")
            key, start, stop = name.strip(SPACE), begin + len(name) + 1, begin + len(content)
        if key and not goes_on:
            settings.append(UnitSetting(key, value.strip(SPACE), start, stop))
            key = ""
    if key:
        settings.append(UnitSetting(key, value.strip(SPACE), start, stop))
    return tuple(settings)


def split(text: str, *, escapes: bool = True, relax: bool = False) -> tuple[Word, ...] | None:
    """The words of a value without their quotes; None where a quote is not closed, so that systemd ignores the value.

    `escapes`: C's are replaced; without, a backslash only takes away what the next character means. `relax`: the end
    closes a quote, as where a variable's value is split.
    """
    tokens = tuple(_words(text, escapes=escapes))
    if tokens and not tokens[-1].closed and not relax:
        return None
    return tokens


def _words(text: str, *, escapes: bool) -> Iterator[Word]:
    at = 0
    while at < len(text):
        if text[at] in SPACE:
            at += 1
            continue
        start, value, quote, known = at, "", "", True
        while at < len(text) and (quote or text[at] not in SPACE):
            char, at = text[at], at + 1
            if char == "\\":
                known = known and bool(ESCAPED.match(text, at) or text[at : at + 1] in ESCAPES)
                part, at = _escape(text, at) if escapes else (text[at : at + 1], at + 1)
                value += part
            elif char == quote:
                quote = ""
            elif not quote and char in "\"'":
                quote = char
            else:
                value += char
        yield Word(value, start, min(at, len(text)), not quote, known)


def _escape(text: str, at: int) -> tuple[str, int]:
    """The character that the escape at `at` stands for, and the offset of its end. Unknown escapes stay unchanged."""
    match = ESCAPED.match(text, at)
    if match:
        return chr(int(match[0].lstrip("xuU"), 8 if match[4] else 16)), match.end()
    char = text[at : at + 1]
    return ESCAPES.get(char, f"\\{char}"), at + 1


def expand_specifiers(text: str, unit: str) -> str | None:
    """The text with systemd's specifiers expanded as far as possible here; None for a specifier unknown to systemd."""
    if any(letter not in KNOWN for letter in re.findall(r"%([a-zA-Z0-9%])", text)):
        return None
    return re.sub(r"%([a-zA-Z%])", lambda m: SPECIFIERS.get(m[1], m[0]).format(unit), text)


def assignments(value: str, unit: str) -> Iterator[tuple[str, str]]:
    for word in _words(value, escapes=True):
        if not word.closed or not word.known:
            return  # systemd ignores the rest of the line
        name, equals, content = (expand_specifiers(word.value, unit) or "").partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            yield name, content


def command(value: str, variables: Mapping[str, str], unit: str) -> tuple[str, ...]:
    """The program of one ExecStart= and its arguments; () where systemd cannot read it.

    Where a shell is to start the program, the words of the shell's command, as far as it is a plain one.
    """
    expanded = [expand_specifiers(word.value, unit) for word in split(value) or ()]
    argv = [word for word in expanded if word is not None]
    if not argv or len(argv) < len(expanded) or ";" in argv:  # `;` begins another command
        return ()
    program = argv[0].lstrip(PREFIXES)
    prefix = argv[0][: len(argv[0]) - len(program)]
    argv = [program, *argv[2 if "@" in prefix else 1 :]]
    if ":" not in prefix:
        argv = list(_expand(argv, variables))
    if argv and argv[0].rsplit("/", 1)[-1] in SHELLS and "-c" in argv[:-1]:
        return _of_shell(argv[argv.index("-c") + 1], variables) or tuple(argv)
    return tuple(argv)


def _expand(argv: Iterable[str], variables: Mapping[str, str]) -> Iterator[str]:
    """`$NAME` alone becomes the words of its value, `${NAME}` is put in as it is."""
    for word in argv:
        if match := re.fullmatch(r"\$((?![{$]).*)", word):
            for part in split(variables.get(match[1], ""), escapes=False, relax=True) or ():
                yield part.value
        else:
            yield re.sub(
                r"\$(?:\{([^}]*)\}|\$)",
                lambda match: "$" if match[1] is None else variables.get(match[1], ""),
                word,
            )


def _of_shell(script: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """The kubelet's words in a shell's command that starts it; () where there is none."""
    expanded = re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: variables.get(m[1] or m[2], ""), script)
    argv = [word.value for word in split(expanded, escapes=False) or ()]
    place = next((n for n, word in enumerate(argv) if word.rsplit("/", 1)[-1] == "kubelet"), None)
    return () if place is None else tuple(argv[place:])


# --- Environment files ----------------------------------------------------------------------------------
#
# Where a quote ends the value may go on, quoted text may span lines, and a backslash at the end of a line takes the line's end
# away.

WHITE, NEWLINE = " \t\n\r", "\n\r"
QUOTED_ESCAPES = '"\\`$'  # within double quotes; before all else a backslash stays
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One of the file: `start` and `stop` are where its text begins and ends, `end` where more can be put into its value."""

    name: str
    value: str
    start: int
    end: int
    stop: int
    closed: bool  # False: a quote lasts until the end of the file


def read_environment(text: str) -> tuple[Assignment, ...]:
    """All assignments, in their order; of one name the last one counts. Other lines are ignored."""
    assignments, at = [], 0
    while at < len(text):
        if text[at] in WHITE:
            at += 1
        elif text[at] in "#;":
            at = _comment(text, at)
        else:
            line = next((n for n in range(at, len(text)) if text[n] in NEWLINE), len(text))
            equals = text.find("=", at, line)
            if equals < 0:
                at = line
                continue
            assignment = _assignment(text, at, equals)
            if NAME.fullmatch(assignment.name):
                assignments.append(assignment)
            at = assignment.stop
    return tuple(assignments)


def _assignment(text: str, start: int, equals: int) -> Assignment:
    at = end = equals + 1
    value, closed = "", True
    while at < len(text):  # before a value, or after a quote in it
        char = text[at]
        if char in NEWLINE:
            break
        if char in WHITE:
            at += 1
        elif char in "\"'":
            part, at, closed = _read_quoted(text, at + 1, char)
            value, end = value + part, at - 1 if closed else at
        else:
            part, at, last = _read_plain(text, at)
            value, end = value + part, last or end
            break
    return Assignment(text[start:equals].rstrip(WHITE), value, start, end, at, closed)


def _read_plain(text: str, at: int) -> tuple[str, int, int]:
    """An unquoted value up to the end of its line: the value, the offset of its end, and the end of its last
    character (0: it is empty)."""
    value, end, length = "", 0, 0
    while at < len(text) and text[at] not in NEWLINE:
        char = text[at]
        at += 1
        if char == "\\":
            if at < len(text):
                if text[at] not in NEWLINE:
                    value, end = value + text[at], at + 1
                at += 1
            length = len(value)
            continue
        value += char
        if char not in WHITE:
            end, length = at, len(value)
    return value[:length], at, end


def _read_quoted(text: str, at: int, quote: str) -> tuple[str, int, bool]:
    """Text in quotes, where it ends, and whether the quote is closed."""
    value = ""
    while at < len(text):
        char = text[at]
        at += 1
        if char == quote:
            return value, at, True
        if char == "\\" and quote == '"' and at < len(text):
            after = text[at]
            at += 1
            value += after if after in QUOTED_ESCAPES else "" if after == "\n" else f"\\{after}"
        else:
            value += char
    return value, at, False


def _comment(text: str, at: int) -> int:
    """Where a comment ends: a backslash at its end makes the next line a part of it (until systemd 254)."""
    while at < len(text) and text[at] not in NEWLINE:
        at += 2 if text[at] == "\\" else 1
    return at
