"""Where the values of a name are in a text. Every pattern has a bound or consumes what it inspects."""

import re
from typing import List, Match, Pattern, Tuple

from gpunode.agent.names import PROSE

Spans = List[Tuple[int, int]]
QUOTES = r"[\\\"'`\])]{0,9}"
SPACE = r"[ \t\u00a0\u2007\u202f]"
ASSIGNED = re.compile(
    rf"(?P<quotes>{QUOTES}){SPACE}{{0,64}}(?:is )?(?:is)?(?P<sign>:=|=>|==|=|:[ \t]{{0,3}}[\w<>&.]{{1,32}}[ \t]{{0,3}}=(?=[ \t]{{0,3}}[\"'])|:|%3[adAD]|&#(?:61|58);){SPACE}{{0,256}}(?:\s{{0,64}}(?=[\"'\[]))?(?:!!?\w{{1,10}} |&\w{{1,32}} )?"
    r"(?:@?[bBuUrR]{0,2}(?=[\"']))?"
)
PAIRED = re.compile(
    rf"(?:{QUOTES}[\s,;+-]{{1,64}}[\\\"']{{0,9}}value|[\"']\s{{0,9}}\{{[^{{}}]{{0,256}}?\bdefault|[\"']{{1,2}}[ \t]{{0,9}}(?=,[ \t]{{0,9}}[\"']))(?P<quotes>[\\\"']{{0,9}}){SPACE}{{0,9}}(?P<sign>[:=,]){SPACE}{{0,9}}",
    re.IGNORECASE,
)
ELEMENT = re.compile(
    r"[\"']?[^<>\n]{0,99}>(?:</\w{1,20}>\s{0,64}<\w{1,20}[^<>\n]{0,99}>)?(?:<!\[CDATA\[)?(?P<value>[^<>\]]{1,4096})(?=(?:\]\]>)?</)"
)
CLOSED = re.compile(
    r"</\w{1,20}>\s{0,9}[:=]?\s{0,64}(?:<\w{1,20}[^<>\n]{0,99}>\s{0,9}){0,3}(?P<value>[^<>\s][^<>]{0,4095})(?=</|\Z)"
)
CELL = re.compile(r"[ \t]{0,64}\|[ \t]{0,64}(?P<value>[^\s|][^|\n]*?)(?=[ \t]{0,64}\|)")
ARGUMENT = re.compile(r"[\"']?(?P<comma>,)\s{0,64}|[\"']?\s{1,64}- |[ \t]{1,64}")
SAID = re.compile(
    r"(?:[ \t]+(?:is|was|to|set to))?[ \t]+[\"'`]?(?P<value>[^\s\"'`,;:()<>/\0][^\s\"'`,;<>\0]{0,511})"
)
SCHEME = re.compile(
    r"(?:Basic|Bearer|Digest|Token|Api-?Key|Bot|Key|Negotiate|NTLM|SSWS|GenieKey|Splunk|PVEAPIToken=)[ \t]{1,9}(?=\S)",
    re.IGNORECASE,
)
BARE = re.compile(
    r"(?:[^\s\"'`,;&)}\]{<\[\\\0]{1,999}|[,;&](?![\s\"'\\]|[\w.-]{1,64}[=:]|$)|[)}\]](?=\w)|[{\[<])+"
)
REST = re.compile(r"[^\n]*")
ODD = re.compile(r"(?=[^\W\d_]*(?:\d|[^\w\s][^\s]))(?=[\d\W_]*[^\W\d_])\S{6,}")
MARKS = ('"', "'", "`")
OPENED = re.compile(r"(\\{0,15})(\"{3}|'{3}|[\"'`])")
COUNT = re.compile(r"\d+(?![^\s,;}\])])")  # of secrets, not one
LINE = re.compile(r"[+-]?([ \t]*)(- )?")
FOLDED = re.compile(r"[|>][\d+-]{0,3}[ \t]*(?:#[^\n]*)?\n|\n")
ALONE = re.compile(
    r"[ \t+*#;>$-]*(?:(?:export|set(?: -\w+)?|setenv|setx|local|readonly|ENV|ARG|env|declare -\w+)[ \t]+)?",
    re.IGNORECASE,
)
WORD = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
GAPS = (*" \t\r\n,;:)}]>&|<\\\0", "")
JOINED = re.compile(  # shells join strings: 'it'\\''s'
    r"(?:\"(?:[^\"\\\n]|\\.)*\"?|'[^'\n]*'?|`[^`\n]*`?|\\'|[^\s,;:)}\]>&|<\\\0\"'`][^\s\"'`,;&)}\]{<\[\\\0]*)*"
)
REFERENCE = re.compile(r"(?:\$\{[^}\n]{0,99}\}|\$\([^)\n]{0,199}\)|\{\{[^}\n]{0,199}\}\})(?![^\s\"',;)}\]])")
PASSWORD = re.compile(r"(?!.*(?:token|secrets?|credentials?|cookie|authorization|\bauth)\Z)", re.IGNORECASE)
TOKEN = re.compile(r"(?=[\w.-]{0,99}\d)(?=[\w.-]{0,99}[A-Za-z])[\w.-]{15,}")
LONE = re.compile(r"(?=\S{0,99}\d)(?=\S{0,99}[A-Za-z])\S{16,}(?=\s*(?:\n|\Z))")
BELOW = re.compile(r"[+-]?([ \t]*)(- +)?([\w.\"'-]{1,64}:(?= |\n|\Z))?[ \t]*([^\n]*)\n?")
MEMBER = re.compile(
    r"[\s,+-]*(?:(\\{0,15}[\"'])?(?P<key>[\w.$/@-]{1,64})(?(1)\1)[ \t]{0,9}(?:=>?|:)\s{0,64})?"
    r"(?:(?P<bracket>[{}\[\]])|(?P<item>[^\]\[,\n\"'`{}\s][^\]\[,\n\"'`{}]*)|(?=\\{0,15}[\"'`]))"
)
REFERS = re.compile(
    r".*(?:name|space|keys?|path|file|type|kind|description|format|ref|mode|length)\Z", re.IGNORECASE
)
VALUES = re.compile(
    r"(?:value|data|plain|(?:plain_?)?text|content|default|current|previous)\Z", re.IGNORECASE
)
# What Kubernetes, Helm and Compose list under `secrets:` are names of such objects.
ITEM = r"[\"']?(?![a-z\d]{16})[a-z\d][a-z\d.-]{0,252}[\"']?"
LISTED = re.compile(
    rf"[:=][ \t]*(?:\[\s*{ITEM}(?:\s*,\s*{ITEM})*,?\s*\]|(?:\n[ \t]*- +{ITEM}[ \t]*(?=\n|\Z))+(?!\n[ \t]*-))"
)
PARSED = re.compile(r"(?:expected|near)[ \t]+\Z", re.IGNORECASE)  # of a language, not a token to log in with
MEMBERS = 1000  # of a list or a mapping; one with more has no reader
PACKAGE = re.compile(r"[a-z][a-z\d.+]*(?:-[a-z\d.+]+)+")
DASHED = re.compile(r"-.*|" + PROSE.pattern, re.IGNORECASE)


def spans(text: str, found: Match[str]) -> Spans:
    """Where the values of a name are."""
    end, before = found.end(), text[max(0, found.start() - 128) : found.start()]
    lead = before.rstrip(WORD)
    name = before[len(lead) :] + text[found.start() : end]
    line = lead[lead.rfind("\n") + 1 :]
    alone = len(line) < 99 and ALONE.fullmatch(line) is not None and not name.startswith("--")
    assigned = ASSIGNED.match(text, end)
    if assigned is None:
        return _spoken(text, end, name, line, alone)
    if name == "PASS" and assigned["sign"] == ":":  # of tests
        return []
    return _assigned(text, assigned, name, line, alone)[0]


def _assigned(text: str, assigned: Match[str], name: str, line: str, alone: bool) -> Tuple[Spans, int]:
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


def _spoken(text: str, end: int, name: str, line: str, alone: bool) -> Spans:
    """Where the value of a name is that has no sign behind it: an argument, an element, a field of a pair, a sentence."""
    if name.startswith("-"):
        argument = ARGUMENT.match(text, end)
        return (
            _word(text, argument.end(), DASHED)
            if argument and (not argument["comma"] or "[" in line or line[-1:] in MARKS)
            else []
        )
    if "<" in line[-99:] or text.startswith("</", end):
        element = ELEMENT.match(text, end) or CLOSED.match(text, end)
        if element:
            return [element.span("value")]
    paired = PAIRED.match(text, end)
    if paired and (paired["sign"] != "," or line.rstrip("\"' \t")[-1:] == "("):  # an argument of a function
        return _assigned(text, paired, name, "" if "\n" in paired[0] else "{", "\n" in paired[0])[0]
    if line.rstrip().endswith("|"):
        cell = CELL.match(text, end)
        return [cell.span("value")] if cell else []
    if text[end : end + 1] not in (" ", "\t"):
        return []
    if alone and line.strip(" \t+*#;>$-"):  # ENV, setenv
        return _word(text, end + 1, PROSE)
    said = SAID.match(text, end)
    if said is None or said["value"].startswith("-"):
        return []
    quoted = text[said.start("value") - 1] in MARKS
    if re.search("token", name, re.IGNORECASE):
        if not quoted or PARSED.search(line[-32:]):
            return [said.span("value")] if TOKEN.fullmatch(said["value"]) else []
    elif not PASSWORD.match(name):
        return []
    if quoted:
        start, end = _string(text, said.start("value") - 1)[0]
        return [] if PROSE.fullmatch(text, start, end) else [(start, end)]
    if name == "passwd" and PACKAGE.fullmatch(said["value"]):
        return []
    last = (
        alone
        and text[said.end() : said.end() + 1] in ("", "\n", '"', "'")
        and not PROSE.fullmatch(said["value"])
    )
    return (
        [said.span("value")]
        if last or (ODD.fullmatch(said["value"]) and text[said.end() : said.end() + 1] != "/")
        else []
    )


def _word(text: str, start: int, prose: Pattern[str]) -> Spans:
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
            if brackets == "[" or (_held(name, key) if key else not member["item"]):
                spans.append(span)
        elif bracket in "{[" and len(brackets) < 2:  # each is read again for the names in it
            brackets += bracket
        elif bracket in "}]" and len(brackets) > 1:
            brackets, key = brackets[:-1], ""
        else:
            return spans, start
    return ([*spans, (start, len(text))], len(text)) if spans else ([], start)


def _held(name: str, key: str) -> bool:
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
        elif begin < end and (not field or _held(name, below[3].strip("\"':"))):
            if not field and not block and text[begin] in "[{":
                return _members(text, begin, name)[0]
            spans.append(_string(text, begin)[0] if field and OPENED.match(text, begin) else (begin, end))
        start = below.end()
        joined = -1 if field else start
    else:
        spans.append((start, len(text)))
    lone = LONE.match(text, opened.end())
    return spans or ([lone.span()] if lone else [])
