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
SCHEMES = r"(?:Basic|Bearer|Digest|Token|Api-?Key|Bot|Key|Negotiate|NTLM|SSWS)[ \t]+"
SCHEME = rf"(?:{SCHEMES})?"
STRING = (
    r"(?:\"{3}.{0,4096}?\"{3}|'{3}.{0,4096}?'{3}|\\\"[^\"\n]*?\\\"|\"(?:\\.|[^\"\\\n])*\"|'(?:''|[^'\n])*')"
)
BARE = r"(?!\\)[^\s\"',;&)}\]{\[]+"
ODD = r"(?=[^\s\"',;]*(?:\d|[!@#$%^&*+=][^\s\"',;]))(?=[^\s\"',;]*[A-Za-z])"  # no word: a letter, and a digit or a sign
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
        rf"(?P<name>\bauthorization{TO}[\"'\[]*{SCHEMES})(?P<value>[^\s\"']+)",
        r"(?P<name>\b(?:Basic|Bearer)[ \t]+)(?P<value>(?-i:(?=[\w.~+/-]*[A-Z\d])[\w.~+/-]{8,}=*(?![\w\"'=])))",
        rf"(?P<name>(?<!\S)--(?:{LONG}|{SHORT})[ \t]+)(?P<value>(?=\S*[^\sA-Za-z]|\S{{16}})[^\s\"'-][^\s\"']*)",
        # Behind its name alone: only what is no word, since programs' words about secrets look the same otherwise.
        r"(?P<name>\b(?:passw(?:or)?d|passphrase|pwd|(?:api|access)[ _-]?key)(?:[ \t]+is)?[ \t]+[\"']?)"
        rf"(?P<value>{ODD}[^\s\"',;:()<>/\0][^\s\"',;<>\0]{{5,}})",
        rf"(?P<name>\btoken(?:[ \t]+is)?[ \t]+[\"']?)(?P<value>(?=[\w.-]{{15}}){ODD}[\w.-]+)",
        # A webhook's address, and a signature.
        r"(?P<name>\bhooks\.slack\.com/\w{1,20}/|\bdiscord(?:app)?\.com/api/(?:v\d{1,3}/)?webhooks/|\.office\.com/webhook\w{0,9}/"
        r"|\bapi\.telegram\.org/(?:file/)?bot|\bpagerduty\.com/integration/|://[^\s/\"'<>]{1,200}/hooks/(?=\w{20}))"
        r"(?P<value>[^\s\"'<>?#\0]+)",
        r"(?P<name>\bsignature=)(?P<value>[\w%/+-]{16,}=*)",
        # The login of a proxy address without a scheme.
        rf"(?P<name>proxy{TO}[\"']?)(?P<value>[^\s\"'@:/]{{1,99}}:(?!//)[^\s\"']{{1,999}})(?=@(?!sha256:))",
        # A query of a URL; netrc, which apt's auth.conf is; a JSON web token, wherever it is.
        r"(?P<name>[?&](?:[\w.-]*-)?(?:code|key|sig|signature)=)(?P<value>[^&\s\"'#]+)",
        r"(?P<name>\b(?:machine|login)\s+\S+\s+(?:login\s+\S+\s+)?(?:password|account)\s+)(?P<value>\S+)",
        r"(?P<name>)(?P<value>\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)",
    )
]
# Of commands whose short flags are other programs' ports, users and folders.
LOGINS = (
    (
        "curl",
        re.compile(
            r"(?P<name>(?<!\S)(?:-u|--user|-U|--proxy-user)[ \t=]?[\"']?[^\s:\"']{1,99}:)(?P<value>[^\s\"']+)"
        ),
    ),
    ("login", re.compile(r"(?P<name>(?<!\S)-p[ \t=]?[\"']?)(?P<value>(?![\d:]+(?!\S))[^\s\"'/-][^\s\"']*)")),
    ("sshpass", re.compile(r"(?P<name>(?<!\S)-p[ \t]?[\"']?)(?P<value>[^\s\"'-][^\s\"']*)")),
)
# Tokens that their makers gave a beginning of their own: GitHub's, GitLab's, AWS's, Google's, OpenAI's and Anthropic's, Hugging
# Face's, NVIDIA NGC's, Slack's, Docker's, npm's, PyPI's, Vault's, SendGrid's, Telegram's, age's, k3s'.
SHAPES = re.compile(
    r"(?<![\w-])(?:gh[oprsu]_\w{20,}|github_pat_\w{20,}|gl(?:pat|dt|rt|ptt|cbt|soat|ft|imt|agent|oas)-[\w-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}"
    r"|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|sk-(?=[\w-]{0,99}\d)[\w-]{20,}|hf_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}"
    r"|dckr_[a-z]{2,4}_[\w-]{16,}|npm_\w{30,}|pypi-[\w-]{30,}|hv[bs]\.[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|\d{8,10}:AA[\w-]{30,}"
    r"|AGE-SECRET-KEY-1\w{20,}|K10[0-9a-f]{64}::[\w:.-]+)"
)
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
    r"auth|pass|psk|pwd|secret|token|credential|cookie|docker|art-api|key|proxy|basic|bearer|eyJ|sig|code=|curl|login|hook|telegram"
    r"|pagerduty",
    re.I,
)


def redacted(text: str) -> str:
    """The text with keys, passwords and tokens replaced by their kind and length. Idempotent."""
    if "-----BEGIN" in text:
        text = BLOCK.sub(lambda m: f"<{m[1].lower()}, {len(m[0])} characters>", text)
    text = SHAPES.sub(lambda m: hidden(m[0]), text)
    if "://" not in text and not HINT.search(text):
        return text
    text = URL.sub(lambda m: _url(m[0]), re.sub(r"<secret, (\d+) characters>", "\0\\1\0", text))
    for pattern in [*PATTERNS, *(pattern for program, pattern in LOGINS if program in text)]:
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
