"""Replaces the secrets in text from hosts and clusters by their size. Pure.

Secrets appear in many formats: JSON, TOML, YAML, ini, environment files, units, URLs, apt's lists, HTTP headers, netrc,
command lines, and messages about these. So no format is parsed. A secret is found by its shape, its place, or by a name
before it, and an ambiguous text is redacted. Every step consumes what it inspects: the time grows with the length alone.
"""

import re
from typing import Any, List, Match

from gpunode.agent.names import NAME, PLAIN, folded, holds, secret
from gpunode.agent.shapes import ARGUMENTS, CRYPT, MAKERS, PLACES
from gpunode.agent.values import QUOTES, SPACE, spans

BEFORE_NAME = re.compile(
    r"\bvalue[\\\"']{0,9}[ \t]{0,9}[:=][ \t]{0,9}[\\\"']{0,9}(?P<value>(?<=[\"'])[^\"'\n\\]{0,999}|[^\s\"',{}][^\n\"',{}]{0,999})"
    r"(?:[\\\"']{0,9}[\s,;+-]{1,64}[\\\"']{0,9}(?:name|key)[\\\"']{0,9}[ \t]?[:=][ \t]?[\\\"']{0,9}(?P<name>[\w.-]{1,128}))?",
    re.IGNORECASE,
)
PEM = re.compile(
    r"-{4,5} ?BEGIN ([A-Z0-9 ]{1,64}?) ?-{4,5}.*?(?:-{4,5} ?END \1 ?-{4,5}|\Z)|\$ANSIBLE_VAULT;[^\n]*(?:\n[ \t+-]*[\da-f]+(?=\n|\Z))*",
    re.DOTALL,
)
URL = re.compile(r"://[^\s\"]+")
SSH = re.compile(
    r"(?:[\w+]*ssh|sftp|rsync)\Z", re.IGNORECASE
)  # schemes with a user name alone, which is no secret
PROXY = re.compile(
    rf"proxy(?P<rest>\w{{0,10}}{QUOTES}{SPACE}{{0,64}}[=:]?{SPACE}{{0,64}}[\"'\\]{{0,9}})(?P<value>[^\s\"'@:/]{{1,99}}:(?!//)[^\s\"'\0]*)?",
    re.IGNORECASE,
)
SHAPES = re.compile(r"(?<![\w-])(?:%s)" % "|".join(rule.pattern for rule in MAKERS))
HASHES = re.compile(CRYPT.pattern)
RULES = [(rule.hints.split("|"), re.compile(rule.pattern, re.IGNORECASE | re.MULTILINE)) for rule in PLACES]
RULES += [(rule.name.split("|"), re.compile(rule.pattern, re.MULTILINE)) for rule in ARGUMENTS]
MANY = 10000  # names; a text with more of them has no reader


def redacted(text: str) -> str:
    """The text with keys, passwords and tokens replaced by their kind and length. Idempotent."""
    if "---BEGIN" in text or "--- BEGIN" in text or "$ANSIBLE_VAULT" in text:
        text = PEM.sub(_block, text)
    text = re.sub(r"<secret, (\d+) characters>", "\0\\1\0", text)
    text = SHAPES.sub(_whole, text)
    if "$" in text or "{S" in text or "*" in text:
        text = HASHES.sub(_whole, text)
    if "://" in text:
        text = URL.sub(_urls, text)
    text = _named(text)
    lower = folded(text)
    if "proxy" in lower:
        text = PROXY.sub(_proxy, text)
    if "value" in lower:
        text = BEFORE_NAME.sub(_before_name, text)
    for hints, pattern in RULES:
        if any(hint in lower for hint in hints):
            text = pattern.sub(_value, text)
    return re.sub(r"\0(\d+)\0", r"<secret, \1 characters>", text)


def redacted_values(value: Any) -> Any:
    """A document of JSON with the strings in it redacted."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_values(one) for key, one in value.items()}
    return [redacted_values(one) for one in value] if isinstance(value, (list, tuple)) else value


def hidden(secret: str) -> str:
    """The replacement for a secret."""
    return "<secret, %d characters>" % len(secret)


def _mark(secret: str) -> str:
    """The placeholder between passes: one word that no pattern matches."""
    return (
        secret
        if PLAIN.fullmatch(secret) or ("\0" in secret and not secret.strip("\0 0123456789"))
        else "\0%d\0" % len(secret)
    )


def _block(found: Match[str]) -> str:
    kind = found[1].lower() if found[1] else "ansible vault"
    return (
        found[0]
        if kind.endswith(("certificate", "public key"))
        else "<%s, %d characters>" % (kind, len(found[0]))
    )


def _whole(found: Match[str]) -> str:
    return "\0%d\0" % len(found[0])


def _value(found: Match[str]) -> str:
    start, end = found.start("value") - found.start(), found.end("value") - found.start()
    return found[0][:start] + _mark(found["value"]) + found[0][end:]


def _before_name(found: Match[str]) -> str:
    return _value(found) if found["name"] and secret(found["name"]) else found[0]


def _proxy(found: Match[str]) -> str:
    value = found["value"] or ""
    at = value.rfind("@")
    if at < 0 or value.startswith("@sha256:", at):
        return found[0]
    return found[0][: len(found[0]) - len(value)] + _mark(value[:at]) + value[at:]


def _urls(found: Match[str]) -> str:
    """One or more URLs without user names and passwords. An `@` or a `/` in them is often not encoded."""
    text, start = found.string, found.start()
    before = text[max(0, start - 21) : start]
    scheme = re.search(r"[\w+.-]*\Z", before)[0]  # type: ignore[index]
    quoted = before[: len(before) - len(scheme)].endswith("'")
    inside, quote, after = found[0].partition("'") if quoted else (found[0], "", "")
    parts = [scheme]
    for rest in inside.split("://")[1:]:
        head, at = re.split(r"[/?#]", rest, maxsplit=1)[0], rest.rfind("@")
        while at >= 0 and rest.startswith("@sha256:", at):
            at = rest.rfind("@", 0, at)
        login = "@" in head[: at + 1] or (":" in head and not head.startswith("["))
        user = ":" not in rest[:at] and SSH.search(parts[-1])
        parts.append(rest if at < 0 or not login or user else _mark(rest[:at]) + rest[at:])
    return "://".join(["", *parts[1:]]) + quote + after


def _named(text: str) -> str:
    """The text without the values of names that hold a secret."""
    shown: List[str] = []
    done = 0
    for count, found in enumerate(NAME.finditer(folded(text))):
        if count > MANY:
            rest = text[max(done, found.start()) :]
            return "".join(shown) + text[done : len(text) - len(rest)] + "\0%d\0" % len(rest)
        if found.start() < done or not holds(text, found):
            continue
        for start, end in spans(text, found):
            value = text[start:end]
            mark = _mark(value)
            if mark != value:
                shown += [text[done:start], mark]
                done = end
    return "".join([*shown, text[done:]])
