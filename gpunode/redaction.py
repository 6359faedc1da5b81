"""Replaces the secrets in text from hosts and clusters by their size. Pure.

Secrets appear in many formats: JSON, TOML, YAML, ini, environment files, units, URLs, apt's lists, HTTP headers, netrc,
command lines, and error messages about these. So no format is parsed: a secret is found by its name or its shape, and an
ambiguous text is redacted.
"""

from __future__ import annotations

import re

# Names that end like this hold a secret; the short ones only as separate words: not `compass`.
LONG = (
    r"[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|credentials?|cookie|authorization|docker(?:cfg|configjson)|art-api"
    r"|(?:access|account|api|encryption|private|secret|shared)[_-]?key|key-data)"
)
SHORT = r"(?:[\w.-]*(?:[_.-]|(?-i:[a-z](?=[A-Z]))))?(?:auth|pass|psk|pwd)"
NAME = rf"(?<![\w.-])(?:{LONG}|{SHORT})"
TO = r"\\?[\"']?[ \t]*[=:][ \t]*"  # from a name to its value
SCHEME = r"(?:(?:Basic|Bearer|Digest|Token)[ \t]+)?"
STRING = (
    r"(?:\"{3}.{0,4096}?\"{3}|'{3}.{0,4096}?'{3}|\\\"[^\"\n]*?\\\"|\"(?:\\.|[^\"\\\n])*\"|'(?:''|[^'\n])*')"
)
BARE = r"(?!\\)[^\s\"',;&)}\]{\[]+"
PATTERNS = [
    re.compile(pattern, re.IGNORECASE | re.MULTILINE | re.DOTALL)
    for pattern in (
        # A string, an array, an assignment in quotes as shells and systemd have it.
        rf"(?P<name>{NAME}{TO})(?P<value>{STRING})",
        rf"(?P<name>{NAME}{TO}\[\s*)(?P<value>{STRING}(?:\s*,\s*{STRING})*|[^\]\[\n\"']+)",
        rf"(?P<name>(?P<quote>[\"']){NAME}=)(?P<value>(?:(?!(?P=quote))[^\n])+)(?=(?P=quote))",
        # Below its name: YAML's blocks and lists.
        rf"^(?P<name>(?P<indent>[ \t]*)[\"']?{NAME}[\"']?:[ \t]*(?:[|>][\d+-]*[ \t]*|(?=\n[ \t]*- ))\n)"
        r"(?P<value>(?:(?:(?P=indent)[ \t]|(?P=indent)- )[^\n]*(?:\n|\Z))+)",
        # A line of its own, to its end.
        rf"^(?P<name>[ \t+-]*(?:export[ \t]+)?{NAME}{TO}{SCHEME})(?P<value>(?![\"'{{\[|>&*\\])\S(?:[^\n]*\S)?)",
        # Within a line: a variable, a field of several, a header, a flag and its argument.
        rf"(?P<name>{NAME}[ \t]*=[ \t]*)(?P<value>{BARE})",
        rf"(?P<name>[\"'{{,(][ \t]*{NAME}{TO}{SCHEME})(?P<value>{BARE})",
        rf"(?P<name>\bauthorization{TO}[\"'\[]*(?:Basic|Bearer|Digest|Token)[ \t]+)(?P<value>[^\s\"']+)",
        r"(?P<name>\b(?:Basic|Bearer)[ \t]+)(?P<value>(?-i:(?=[\w.~+/-]*[A-Z\d])[\w.~+/-]{8,}=*(?![\w\"'=])))",
        rf"(?P<name>(?<!\S)--(?:{LONG}|{SHORT})[ \t]+)(?P<value>(?=\S*[^\sA-Za-z])[^\s\"'-][^\s\"']*)",
        # The login of a proxy address without a scheme.
        rf"(?P<name>proxy{TO}[\"']?)(?P<value>[^\s\"'@:/]{{1,99}}:(?!//)[^\s\"']{{1,999}})(?=@(?!sha256:))",
        # A query of a URL; netrc, which apt's auth.conf is; a JSON web token, wherever it is.
        r"(?P<name>[?&](?:[\w.-]*-)?(?:code|key|sig|signature)=)(?P<value>[^&\s\"'#]+)",
        r"(?P<name>\b(?:machine|login)\s+\S+\s+(?:login\s+\S+\s+)?(?:password|account)\s+)(?P<value>\S+)",
        r"(?P<name>)(?P<value>\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)",
    )
]
NAMED = re.compile(NAME, re.IGNORECASE)
TEXT = re.compile(STRING, re.DOTALL)
BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
URL = re.compile(r"\"[\w+.-]{2,20}://[^\"\s]*|'[\w+.-]{2,20}://[^'\s]*|[\w+.-]{2,20}://[^\"\s]*")
LOGIN = re.compile(
    r"(?:[\w+]*ssh|sftp|rsync)", re.IGNORECASE
)  # schemes with a user name alone, which is no secret
# No secrets: settings, file paths, text that is already redacted.
PLAIN = re.compile(
    r"(?:true|false|null|none|yes|no|on|off|~)?|(?:/[\w.-]+)+\.(?:asc|conf|crt|gpg|json|key|pem|txt|ya?ml)|\0\d+\0",
    re.IGNORECASE,
)
# Every secret has one of these near it; most text has none, and is returned at once.
HINT = re.compile(
    r"auth|pass|psk|pwd|secret|token|credential|cookie|docker|art-api|key|proxy|basic|bearer|eyJ|sig|code=",
    re.I,
)


def redacted(text: str) -> str:
    """The text with keys, passwords and tokens replaced by their kind and length. Idempotent."""
    if "-----BEGIN" in text:
        text = BLOCK.sub(lambda m: f"<{m[1].lower()}, {len(m[0])} characters>", text)
    if "://" not in text and not HINT.search(text):
        return text
    text = URL.sub(lambda m: _url(m[0]), re.sub(r"<secret, (\d+) characters>", "\0\\1\0", text))
    for pattern in PATTERNS:
        text = pattern.sub(_without, text)
    return re.sub(r"\0(\d+)\0", r"<secret, \1 characters>", text)


def hidden(secret: str) -> str:
    """The replacement for a secret."""
    return f"<secret, {len(secret)} characters>"


def secret(name: str) -> bool:
    """True if a field or variable of this name holds a secret."""
    return NAMED.fullmatch(name) is not None


def _mark(secret: str) -> str:
    """The placeholder between passes: one word that no pattern matches."""
    return f"\0{len(secret)}\0"


def _without(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    if TEXT.match(value):
        return name + TEXT.sub(lambda m: _string(m[0]), value)
    if PLAIN.fullmatch(value.strip()):
        return found[0]
    indent = value[: len(value) - len(value.lstrip())]
    return f"{name}{indent}{_mark(value.strip())}{chr(10) if value.endswith(chr(10)) else ''}"


def _string(text: str) -> str:
    quote = next(one for one in ('"""', "'''", '\\"', '"', "'") if text.startswith(one))
    inner = text[len(quote) : -len(quote)]
    return text if PLAIN.fullmatch(inner) else f"{quote}{_mark(inner)}{quote}"


def _url(text: str) -> str:
    """One or more URLs without user names and passwords. An `@` or a `/` in them is often not encoded."""
    scheme, *rests = text.split("://")
    parts = [scheme]
    for rest in rests:
        head, at = re.split(r"[/?#]", rest, maxsplit=1)[0], rest.rfind("@")
        while at >= 0 and rest.startswith("@sha256:", at):
            at = rest.rfind("@", 0, at)
        login = "@" in head[: at + 1] or (":" in head and not head.startswith("["))
        if (
            at < 0
            or not login
            or PLAIN.fullmatch(rest[:at])
            or (":" not in rest[:at] and LOGIN.fullmatch(parts[-1].strip("\"'")))
        ):
            parts.append(rest)
        else:
            parts.append(f"{_mark(rest[:at])}{rest[at:]}")
    return "://".join(parts)
