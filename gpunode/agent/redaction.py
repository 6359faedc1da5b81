"""Replaces the secrets in text from hosts and clusters by their size. Pure.

Secrets appear in many formats: JSON, TOML, YAML, ini, environment files, units, URLs, apt's lists, HTTP headers, netrc,
command lines, and messages about these. So no format is parsed. A secret is found by its shape, its place, or by a name
before it, and an ambiguous text is redacted. Every step consumes what it inspects: the time grows with the length alone.
"""

import re
from typing import Any, Iterable, Iterator, List, Match, Pattern, Tuple

from gpunode.agent.shapes import CRYPT, LINES, PLACES, TOKENS, WITH
from gpunode.agent.values import NAME, PLAIN, QUOTES, SPACE, WORD, folded, holds, secret, spans

Span = Tuple[int, int]
PEM = re.compile(
    r"-{4,5} ?BEGIN ([A-Z0-9 ]{1,64}?) ?-{4,5}.*?(?:-{4,5} ?END \1 ?-{4,5}|\Z)|\$ANSIBLE_VAULT;[^\n]*(?:\n[ \t+-]*[\da-f]+(?=\n|\Z))*",
    re.DOTALL,
)
SHAPES = re.compile(r"(?<![\w-])(?:%s)|%s" % ("|".join(TOKENS), CRYPT))
# Up to the last `@`: in a login, another one or a `/` is often not encoded.
LOGIN = re.compile(
    r"://(?!@)(?=[^\s\"/?#]*@|(?!\[)[^\s\"/?#:]*:(?!//))([^\s\":]*(?::(?!//)[^\s\":]*)*)@(?!sha256:)"
)
PROXY = re.compile(
    rf"proxy\w{{0,10}}{QUOTES}{SPACE}{{0,64}}[=:]?{SPACE}{{0,64}}[\"'\\]{{0,9}}([^\s\"'@:/]{{1,99}}:(?!//)[^\s\"'\0]*)?"
)
BEFORE_NAME = re.compile(
    r"\bvalue[\\\"']{0,9}[ \t]{0,9}[:=][ \t]{0,9}[\\\"']{0,9}((?<=[\"'])[^\"'\n\\]{0,999}|[^\s\"',{}][^\n\"',{}]{0,999})"
    r"(?:[\\\"']{0,9}[\s,;+-]{1,64}[\\\"']{0,9}(?:name|key)[\\\"']{0,9}[ \t]?[:=][ \t]?[\\\"']{0,9}(?P<name>[\w.-]{1,128}))?"
)
RULES = [
    (hints.split("|"), re.compile(pattern, re.MULTILINE))
    for hints, pattern in (
        ("", r"\b(?=\w)(?:%s)" % "|".join(PLACES)),
        ("", r"^[+-]?[ \t]{0,32}(?:%s)" % "|".join(LINES)),
        *WITH,
    )
]
MANY = 10000  # secrets, or their names; a text with more of them has no reader


def redacted(text: str) -> str:
    """The text with keys, passwords and tokens replaced by their kind and length. Idempotent."""
    if "---BEGIN" in text or "--- BEGIN" in text or "$ANSIBLE_VAULT" in text:
        text = PEM.sub(_block, text)
    text = re.sub(r"<secret, (\d+) characters>", "\0\\1\0", text)
    for find in (_shapes, _logins, _named, _proxies, _before_names):
        text = _without(text, find(text))
    lower = folded(text)
    for hints, pattern in RULES:
        if any(hint in lower for hint in hints):
            text = _without(text, _found(pattern, lower))
            lower = folded(text)
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


def _without(text: str, spans: Iterable[Span]) -> str:
    """The text with placeholders for these spans: each is one word that no pattern matches."""
    shown: List[str] = []
    done = 0
    for start, end in spans:
        if start >= done and _hides(text, start, end):
            end = len(text) if len(shown) > 2 * MANY else end
            shown += [text[done:start], "\0%d\0" % (end - start)]
            done = end
    return "".join([*shown, text[done:]])


def _hides(text: str, start: int, end: int) -> bool:
    value = text[start:end]
    return not PLAIN.fullmatch(value) and not ("\0" in value and not value.strip("\0 0123456789"))


def _block(found: Match[str]) -> str:
    kind = found[1].lower() if found[1] else "ansible vault"
    return (
        found[0]
        if kind.endswith(("certificate", "public key"))
        else "<%s, %d characters>" % (kind, len(found[0]))
    )


def _found(pattern: Pattern[str], text: str) -> Iterator[Span]:
    for found in pattern.finditer(text):
        yield found.span(found.lastindex or 0)


def _shapes(text: str) -> Iterator[Span]:
    return _found(SHAPES, text)


def _logins(text: str) -> Iterator[Span]:
    """User names and passwords in URLs."""
    for one in LOGIN.finditer(text):
        before = text[max(0, one.start() - 21) : one.start()]
        lead = before.rstrip(WORD + "+")
        quote = one[1].find("'") if lead.endswith("'") else -1
        found = one if quote < 0 else LOGIN.match(text, one.start(), one.start(1) + quote)
        user = before[len(lead) :].lower().endswith(("ssh", "sftp", "rsync"))  # alone, it is no secret
        if found and (":" in found[1] or not user):
            yield found.span(1)


def _named(text: str) -> Iterator[Span]:
    """The values of names that hold a secret."""
    done = 0
    for count, found in enumerate(NAME.finditer(folded(text))):
        if count > MANY:
            yield max(done, found.start()), len(text)
            return
        if found.start() >= done and holds(text, found):
            for start, end in spans(text, found):
                yield start, end
                done = end if _hides(text, start, end) else done


def _proxies(text: str) -> Iterator[Span]:
    """Logins of proxies without a scheme."""
    for found in PROXY.finditer(folded(text)):
        at = (found[1] or "").rfind("@")
        if at >= 0 and not found[1].startswith("@sha256:", at):
            yield found.start(1), found.start(1) + at


def _before_names(text: str) -> Iterator[Span]:
    """Values that stand before their names, as in lists of variables."""
    for found in BEFORE_NAME.finditer(folded(text)):
        if found["name"] and secret(text[found.start("name") : found.end("name")]):
            yield found.span(1)
