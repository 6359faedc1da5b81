"""Names that hold a secret, and where their values are in a text. Every pattern has a bound or consumes what it inspects."""

import re
from typing import Any, List, Match, Tuple


class Shape:
    """A regular expression, compiled when it is first used: most texts need few of these."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern, self._flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self.pattern, self._flags)
        self.match, self.fullmatch, self.finditer = compiled.match, compiled.fullmatch, compiled.finditer
        return getattr(compiled, name)


# Names that end like this hold a secret, in English and in other languages of Europe. Lower case.
STEMS = (
    r"passw(?:or)?ds?|passphrase|regcode|passcode|passwort|passwörter|passord|passe|pass|kennwort|contrase(?:n|ñ|n\u0303)a|senha|wachtwoord|parola"
    r"|has[lł]o|senord|salasana|adgangskode|heslo|jelsz[óo]|пароль|κωδικός"
    r"|secrets?[_-]?(?:id|key)|secrets?|tokens?|credentials?|creds?|cookie|authorization|docker(?:cfg|configjson)|art-api|connection_?string"
    r"|access_?signature|private-mac|auth_?tok|masterauth|chpasswd|auth|key[_-]?data|keys?|psk|salt|community|pwd|pw|pat|mdp|otp"
)
# What stands before those that are no secrets alone; the short ones are, as words of their own: not `compass`.
PREFIXES = {
    "pass": tuple(
        "require master db user key store ftp smtp http mail ldap root admin my sql ssl login auth become sasl proxy trust vnc rpc ssh pg".split()
    ),
    "pw": tuple("root bind admin user db ldap my key trust sudo sql ftp".split()),
    "passe": ("mot de ", "mots de ", "mot_de_", "mot-de-", "motde"),
    "key": tuple(
        "access account activation api app application auth certificate client crypt crypto deploy deployment decryption encryption hash hmac"
        " ingest ingestion instrumentation integration jwt licence license machine master preshared pre-shared shared priv private product"
        " recovery registration routing secret service session sign signing storage subscription tls unlock unseal webhook wep write".split()
    ),
}
PREFIXES["salt"] = (*PREFIXES["key"], "ticket", "cookie", "password", "passwd", "pass", "nonce", "logged_in")
PREFIXES["community"] = ("snmp", "ro", "rw", "trap")
SHORT = ("auth", "pass", "pwd", "pw", "pat", "mdp", "otp")
# What names of secrets have behind that.
SUFFIX = (
    r"(?:[_-]?(?:hash|base|value|b64|base64|plain|plaintext|text|string|enc|encoded|encrypted|new|old|current|prod|production|dev|staging"
    r"|live|primary|secondary|in|out|again|confirm|confirmation|v?\d{1,4})| \d)?"
)
NAME = Shape(rf"(?:{STEMS})(?P<suffix>{SUFFIX})(?![\w.-])")
# Words behind a name that are none of its values.
PROSE = Shape(
    r"(?:and|or|is|are|was|were|to|in|for|with|without|from|of|as|on|at|by|if|when|that|this|the|a|an|not|no|only|must|may|can|cannot|should|will"
    r"|has|have|had|flag|flags|option|options|argument|file|field|value|values|needs?|requires?|required|missing|expired|incorrect|changed"
    r"|mismatch|authentication|auth|prompt|reset|updated|accepted|rejected|denied|failed|invalid|unset|empty|found|store|manager|policy|age|hash"
    r"|hashes|secret|auth(?:enticat|oriz)\w+|valid\w*|rotat\w+|controller|review|cleaner|service|provider|reader|instead|itself|string|length|protected)"
    r"[.:,;)!?]*",
    re.IGNORECASE,
)
# No secrets: settings, references, file paths, databases of users, text that is already redacted.
PLAIN = Shape(
    r"(?:true|false|null|nil|none|yes|no|on|off|~|undefined|unset|enabled|disabled|required|optional|\*+|x+|-+|\.\.\.|…|<nil>|<none>|<unset>|<set>"
    r"|\[REDACTED\]|<redacted>|\(hidden\))?[,;]?"
    r"|(?:/[\w.@-]+)+\.(?:asc|conf|crt|env|gpg|jwt|json|key|pem|pub|txt|toml|ya?ml)|[\w.-]{1,64}\.(?:jwt|key|pem|crt|json|ya?ml|txt|go:\d+:?)"
    r"|(?:[\w.-]{1,64}:)?/(?:(?:etc|var|run|usr|home|root|opt|tmp|srv|mnt|dev|proc|sys|data|lib)(?:/[\w.@:-]*)*)?"
    r"|\$\{[^}\n]*\}|\$\([^)\n]*\)|\{\{[^\n]*\}\}|(?:files|compat|sss|systemd|db|nis|ldap|winbind)(?: (?:files|compat|sss|systemd|db|nis|ldap|winbind|\[[^\]\n]*\]))*"
    r"|password (?:unchanged|updated|expiry)[^\n]*|\0\d+\0|\*[\w-]{1,64}",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    return any(
        stem.end() == len(name) and is_secret_at(name, stem) for stem in NAME.finditer(lower_case(name))
    )


def lower_case(text: str) -> str:
    """The text in lower case, with each character at its place."""
    return text.replace("İ", "i").lower()  # no other character gets longer


def is_secret_at(text: str, match: Match[str]) -> bool:
    """True if the name that ends with this stem holds a secret."""
    stem, start = match[0][: match.start("suffix") - match.start()], match.start()
    stem = "key" if stem == "keys" else stem
    known = PREFIXES.get("key" if stem.startswith("key") and stem != "key" else stem)
    before = text[max(0, start - 16) : start]
    if known and before.lower().rstrip("_-. " if stem == "key" else "_-" if stem != "passe" else "").endswith(
        known
    ):
        return True
    if stem in SHORT:
        return not before[-1:].isalnum() or (before[-1:].islower() and text[start].isupper())
    return known is None or (stem.startswith("key") and stem != "key")


Spans = List[Tuple[int, int]]
QUOTES = r"[\\\"'`\])]{0,9}"
SPACE = r"[ \t\u00a0\u2007\u202f]"
ASSIGNED = Shape(
    rf"(?P<quotes>{QUOTES}){SPACE}{{0,64}}(?:is )?(?:is)?(?P<sign>:=|=>|==|=|:[ \t]{{0,3}}[\w<>&.]{{1,32}}[ \t]{{0,3}}=(?=[ \t]{{0,3}}[\"'])|:|%3[adAD]|&#(?:61|58);){SPACE}{{0,256}}(?:\s{{0,64}}(?=[\"'\[]))?(?:!!?\w{{1,10}} |&\w{{1,32}} )?"
    r"(?:@?[bBuUrR]{0,2}(?=[\"']))?"
)
PAIRED = Shape(
    rf"(?:{QUOTES}[\s,;+-]{{1,64}}[\\\"']{{0,9}}value|[\"']\s{{0,9}}\{{[^{{}}]{{0,256}}?\bdefault|[\"']{{1,2}}[ \t]{{0,9}}(?=,[ \t]{{0,9}}[\"']))(?P<quotes>[\\\"']{{0,9}}){SPACE}{{0,9}}(?P<sign>[:=,]){SPACE}{{0,9}}",
    re.IGNORECASE,
)
ELEMENT = Shape(
    r"[\"']?[^<>\n]{0,99}>(?:</\w{1,20}>\s{0,64}<\w{1,20}[^<>\n]{0,99}>)?(?:<!\[CDATA\[)?(?P<value>[^<>\]]{1,4096})(?=(?:\]\]>)?</)"
)
CLOSED = Shape(
    r"</\w{1,20}>\s{0,9}[:=]?\s{0,64}(?:<\w{1,20}[^<>\n]{0,99}>\s{0,9}){0,3}(?P<value>[^<>\s][^<>]{0,4095})(?=</|\Z)"
)
CELL = Shape(r"[ \t]{0,64}\|[ \t]{0,64}(?P<value>[^\s|][^|\n]*?)(?=[ \t]{0,64}\|)")
ARGUMENT = Shape(r"[\"']?(?P<comma>,)\s{0,64}|[\"']?\s{1,64}- |[ \t]{1,64}")
SAID = Shape(
    r"(?:[ \t]+(?:is|was|to|set to))?[ \t]+[\"'`]?(?P<value>[^\s\"'`,;:()<>/\0][^\s\"'`,;<>\0]{0,511})"
)
SCHEME = Shape(
    r"(?:Basic|Bearer|Digest|Token|Api-?Key|Bot|Key|Negotiate|NTLM|SSWS|GenieKey|Splunk|PVEAPIToken=)[ \t]{1,9}(?=\S)",
    re.IGNORECASE,
)
BARE = Shape(
    r"(?:[^\s\"'`,;&)}\]{<\[\\\0]{1,999}|[,;&](?![\s\"'\\]|[\w.-]{1,64}[=:]|$)|[)}\]](?=\w)|[{\[<])+"
)
REST = Shape(r"[^\n]*")
ODD = Shape(r"(?=[^\W\d_]*(?:\d|[^\w\s][^\s]))(?=[\d\W_]*[^\W\d_])\S{6,}")
MARKS = ('"', "'", "`")
OPENED = Shape(r"(\\{0,15})(\"{3}|'{3}|[\"'`])")
COUNT = Shape(r"\d+(?![^\s,;}\])])")  # of secrets, not one
LINE = Shape(r"[+-]?([ \t]*)(- )?")
FOLDED = Shape(r"[|>][\d+-]{0,3}[ \t]*(?:#[^\n]*)?\n|\n")
ALONE = Shape(
    r"[ \t+*#;>$-]*(?:(?:export|set(?: -\w+)?|setenv|setx|local|readonly|ENV|ARG|env|declare -\w+)[ \t]+)?",
    re.IGNORECASE,
)
WORD = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
GAPS = (*" \t\r\n,;:)}]>&|<\\\0", "")
JOINED = Shape(  # shells join strings: 'it'\\''s'
    r"(?:\"(?:[^\"\\\n]|\\.)*\"?|'[^'\n]*'?|`[^`\n]*`?|\\'|[^\s,;:)}\]>&|<\\\0\"'`][^\s\"'`,;&)}\]{<\[\\\0]*)*"
)
REFERENCE = Shape(r"(?:\$\{[^}\n]{0,99}\}|\$\([^)\n]{0,199}\)|\{\{[^}\n]{0,199}\}\})(?![^\s\"',;)}\]])")
PASSWORD = Shape(r"(?!.*(?:token|secrets?|credentials?|cookie|authorization|\bauth)\Z)", re.IGNORECASE)
TOKEN = Shape(r"(?=[\w.-]{0,99}\d)(?=[\w.-]{0,99}[A-Za-z])[\w.-]{15,}")
LONE = Shape(r"(?=\S{0,99}\d)(?=\S{0,99}[A-Za-z])\S{16,}(?=\s*(?:\n|\Z))")
BELOW = Shape(r"[+-]?([ \t]*)(- +)?([\w.\"'-]{1,64}:(?= |\n|\Z))?[ \t]*([^\n]*)\n?")
MEMBER = Shape(
    r"[\s,+-]*(?:(\\{0,15}[\"'])?(?P<key>[\w.$/@-]{1,64})(?(1)\1)[ \t]{0,9}(?:=>?|:)\s{0,64})?"
    r"(?:(?P<bracket>[{}\[\]])|(?P<item>[^\]\[,\n\"'`{}\s][^\]\[,\n\"'`{}]*)|(?=\\{0,15}[\"'`]))"
)
REFERS = Shape(
    r".*(?:name|space|keys?|path|file|type|kind|description|format|ref|mode|length)\Z", re.IGNORECASE
)
VALUES = Shape(r"(?:value|data|plain|(?:plain_?)?text|content|default|current|previous)\Z", re.IGNORECASE)
# What Kubernetes, Helm and Compose list under `secrets:` are names of such objects.
ITEM = r"[\"']?(?![a-z\d]{16})[a-z\d][a-z\d.-]{0,252}[\"']?"
LISTED = Shape(
    rf"[:=][ \t]*(?:\[\s*{ITEM}(?:\s*,\s*{ITEM})*,?\s*\]|(?:\n[ \t]*- +{ITEM}[ \t]*(?=\n|\Z))+(?!\n[ \t]*-))"
)
PARSED = Shape(r"(?:expected|near)[ \t]+\Z", re.IGNORECASE)  # of a language, not a token to log in with
MEMBERS = 1000  # of a list or a mapping; one with more has no reader
PACKAGE = Shape(r"[a-z][a-z\d.+]*(?:-[a-z\d.+]+)+")
DASHED = Shape(r"-.*|" + PROSE.pattern, re.IGNORECASE)


def spans(text: str, match: Match[str]) -> Spans:
    """Where the values of a name are."""
    end, before = match.end(), text[max(0, match.start() - 128) : match.start()]
    lead = before.rstrip(WORD)
    name = before[len(lead) :] + text[match.start() : end]
    line = lead[lead.rfind("\n") + 1 :]
    alone = len(line) < 99 and ALONE.fullmatch(line) is not None and not name.startswith("--")
    assigned = ASSIGNED.match(text, end)
    if assigned is None:
        return _unassigned_values(text, end, name, line, alone)
    if name == "PASS" and assigned["sign"] == ":":  # of tests
        return []
    return _assigned_values(text, assigned, name, line, alone)[0]


def _assigned_values(text: str, assigned: Match[str], name: str, line: str, alone: bool) -> Tuple[Spans, int]:
    """Where the values behind a sign are, and where they end."""
    start, spaced = assigned.end(), text[assigned.end() - 1].isspace()
    if re.search("pull_?secrets$" if assigned["sign"] == "=" else "secrets$", name, re.IGNORECASE):
        listed = LISTED.match(text, assigned.start("sign"))
        if listed:
            return [], listed.end()
    if OPENED.match(text, start):
        span, end = _string(text, start)
        return [span], end
    if text.startswith(("[", "{"), start) and not text.startswith("{{", start):
        return _members(text, start, name)
    if FOLDED.match(text, start):
        return _below(text, start, name, line if alone or not line.strip("\"' \t+-") else ""), start
    if start == len(text) or REFERENCE.match(text, start) or text[start] == "{":
        return [], start
    if name[-1:] in "sS" and COUNT.match(text, start):
        return [], start
    scheme = SCHEME.match(text, start)
    start = scheme.end() if scheme else start
    wrap = line[-1:] if line[-1:] in MARKS and not set(assigned["quotes"]) & set("\"'") else ""
    if wrap:
        slashes = len(line) - 1 - len(line[:-1].rstrip("\\"))
        end = _closing(text, start, wrap, slashes)
        if assigned["sign"] != ":" or scheme or " " not in text[start:end] or ODD.search(text, start, end):
            return [(start, end)], end
    if alone:
        end = start + len(REST.match(text, start)[0].rstrip())  # type: ignore[index]
        return [(start, end)], end
    bare = BARE.match(text, start)
    if bare is None or (assigned["sign"] == ":" and not spaced and line[-1:] in tuple("/@")):
        return [], start
    end = bare.end()
    loose = (
        assigned["sign"] == ":"
        and spaced
        and not scheme
        and line.rstrip("\"' \t\\" if assigned["quotes"] else " \t")[-1:] not in tuple("\"'{,([")
    )
    if (
        loose
        and not ODD.fullmatch(bare[0])
        and (not PASSWORD.match(name) or text[end : end + 1].strip("\n") or PROSE.fullmatch(bare[0]))
    ):
        return [], start
    return [(start, end)], end


def _unassigned_values(text: str, end: int, name: str, line: str, alone: bool) -> Spans:
    """Where the value of a name is that has no sign behind it: an argument, an element, a field of a pair, a sentence."""
    if name.startswith("-"):
        argument = ARGUMENT.match(text, end)
        if argument and (not argument["comma"] or "[" in line or line[-1:] in MARKS):
            return _word(text, argument.end(), DASHED)
        return []
    if "<" in line[-99:] or text.startswith("</", end):
        element = ELEMENT.match(text, end) or CLOSED.match(text, end)
        if element:
            return [element.span("value")]
    paired = PAIRED.match(text, end)
    if paired and (paired["sign"] != "," or line.rstrip("\"' \t")[-1:] == "("):  # an argument of a function
        return _assigned_values(text, paired, name, "" if "\n" in paired[0] else "{", "\n" in paired[0])[0]
    if line.rstrip().endswith("|"):
        cell = CELL.match(text, end)
        return [cell.span("value")] if cell else []
    if text[end : end + 1] not in (" ", "\t"):
        return []
    if alone and line.strip(" \t+*#;>$-"):  # ENV, setenv
        return _word(text, end + 1, PROSE)
    match = SAID.match(text, end)
    if match is None or match["value"].startswith("-"):
        return []
    quoted = text[match.start("value") - 1] in MARKS
    if re.search("token", name, re.IGNORECASE):
        if not quoted or PARSED.search(line[-32:]):
            return [match.span("value")] if TOKEN.fullmatch(match["value"]) else []
    elif not PASSWORD.match(name):
        return []
    if quoted:
        start, end = _string(text, match.start("value") - 1)[0]
        return [] if PROSE.fullmatch(text, start, end) else [(start, end)]
    if name == "passwd" and PACKAGE.fullmatch(match["value"]):
        return []
    last = (
        alone
        and text[match.end() : match.end() + 1] in ("", "\n", '"', "'")
        and not PROSE.fullmatch(match["value"])
    )
    if last or (ODD.fullmatch(match["value"]) and text[match.end() : match.end() + 1] != "/"):
        return [match.span("value")]
    return []


def _word(text: str, start: int, prose: Shape) -> Spans:
    if OPENED.match(text, start):
        return [_string(text, start)[0]]
    bare = BARE.match(text, start)
    return [bare.span()] if bare and not prose.fullmatch(bare[0]) and not REFERENCE.match(text, start) else []


def _string(text: str, start: int) -> Tuple[Tuple[int, int], int]:
    """Where the inside of a string is, and where it ends."""
    inside, end = _quoted(text, start)
    if text[start] == "\\" or (text[end : end + 1] in GAPS and not text.startswith("\\'", end)):
        return inside, end
    end = JOINED.match(text, end).end()  # type: ignore[union-attr]
    return (start, end), end


def _quoted(text: str, start: int) -> Tuple[Tuple[int, int], int]:
    """Where the inside of a string in quotes is, and where it ends. One that is not closed goes to the end of its line."""
    opened = OPENED.match(text, start)
    assert opened
    start, slashes, quote = opened.end(), len(opened[1]), opened[2]
    if len(quote) == 3:
        end = text.find(quote, start)
        return ((start, end), end + 3) if end >= 0 else ((start, len(text)), len(text))
    end = _closing(text, start, quote, slashes)
    closed = text[end : end + slashes + 1] == opened[0]
    return (start, end), end + (slashes + 1 if closed else 0)


def _closing(text: str, start: int, quote: str, slashes: int) -> int:
    """Where the string ends that a quote with so many backslashes opens: each level of escapes doubles them and adds one."""
    level = r"(?:\\{%d})" % (2 * slashes + 2)
    inside = rf"[^{quote}\\\n]+|\\+(?![{quote}\\])|{level}*\\{{{slashes + 1},{2 * slashes + 1}}}{quote}"
    inside += rf"|{level}+\\{{0,{slashes - 1}}}{quote}" if slashes else ""
    last = re.compile(rf"(?:{inside})*(\\*)({quote})?").match(text, start)
    assert last
    return last.end(1) - (min(len(last[1]), slashes) if last[2] else 0)


def _members(text: str, start: int, name: str) -> Tuple[Spans, int]:
    """Where the values of a list or of a mapping are, and where it ends. A field that refers to something has none."""
    spans: Spans = []
    brackets, key = "", ""
    for _ in range(MEMBERS):
        member = MEMBER.match(text, start)
        if member is None:
            return spans, start
        key, start, bracket = member["key"] or key, member.end(), member["bracket"]
        if not bracket:
            span, start = (member.span("item"), start) if member["item"] else _string(text, start)
            if brackets == "[" or (_is_secret_field(name, key) if key else not member["item"]):
                spans.append(span)
        elif bracket in "{[" and len(brackets) < 2:  # each is read again for the names in it
            brackets += bracket
        elif bracket in "}]" and len(brackets) > 1:
            brackets, key = brackets[:-1], ""
        else:
            return spans, start
    return ([*spans, (start, len(text))], len(text)) if spans else ([], start)


def _is_secret_field(name: str, key: str) -> bool:
    """True if this field of what has the name of a secret is a secret."""
    return not REFERS.match(key) if PASSWORD.match(name) else VALUES.match(key) is not None


def _below(text: str, start: int, name: str, line: str) -> Spans:
    """Where the values are that YAML puts below a name: a block, a list, a string that begins there, the fields of a mapping."""
    opened, above = FOLDED.match(text, start), LINE.match(line)
    assert opened
    assert above
    column, start = len(above[1]) + len(above[2] or ""), opened.end()
    block, joined = opened[0][0] in "|>", -1
    spans: Spans = []
    for count in range(MEMBERS):
        below = BELOW.match(text, start)
        assert below
        deep, field = len(below[1]) > column, below[3] and not block
        below_too = not below[4] if block else below[2] and len(below[1]) == column
        if start == len(text) or not (deep or below_too):
            break
        if field and count > 99:  # what is not hidden is read again for the names in it
            break
        begin, end = below.end(1) if block else below.start(4), start + len(below[0].rstrip())
        if joined == start and not field:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        elif begin < end and (not field or _is_secret_field(name, below[3].strip("\"':"))):
            if not field and not block and text[begin] in "[{":
                return _members(text, begin, name)[0]
            spans.append(_string(text, begin)[0] if field and OPENED.match(text, begin) else (begin, end))
        start = below.end()
        joined = -1 if field else start
    else:
        spans.append((start, len(text)))
    lone = LONE.match(text, opened.end())
    return spans or ([lone.span()] if lone else [])
