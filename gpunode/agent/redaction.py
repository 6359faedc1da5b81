"""Replaces the secrets in text from hosts and clusters by their size. Pure.

Secrets appear in many formats: JSON, TOML, YAML, ini, environment files, units, URLs, apt's lists, HTTP headers, netrc,
command lines, and messages about these. So no format is parsed. A secret is found by its shape, its place, or by a name
before it, and an ambiguous text is redacted. Every step consumes what it inspects: the time grows with the length alone.
"""

import re
from functools import partial
from typing import Any, Iterable, Iterator, List, Match, Tuple

from gpunode.agent.values import (
    NAME,
    PLAIN,
    QUOTES,
    SPACE,
    WORD,
    Shape,
    is_secret,
    is_secret_at,
    lower_case,
    spans,
)

# --- Shapes -------------------------------------------------------------------------------------------------
#
# Secrets that show by themselves: the tokens of their makers, and values in a place that only secrets have. A pattern hides its one
# group, or all that it finds. Its repetitions have a bound or consume what they inspect. The patterns of a table are tried together,
# in one pass: hostile text costs no more than its length.


def _value(before: str = "") -> str:
    """What a secret is matched by that may stand in quotes, with what stands before it in them."""
    ends = "|".join(rf"{quote}{before}([^{quote}\n]*[^{quote}\n\\])" for quote in "\"'")
    return rf"\\{{0,9}}(?:{ends}|{before}([^\s\"'`\\][^\s\"'`]*))"


VALUE = _value()
FIELD = _value(r"[^\s=]{1,99}=")
TO = r"(?:[\"'],\s{0,64}|[ \t=]{0,9})"  # from a flag to its value, on a command line or in a list

# Behind no character of a word. First the makers whose tokens have a beginning of their own, and a digit.
TOKENS = (
    r"(?:gh[oprsu]_|github_pat_|gl(?:pat|dt|rt|rtr|ptt|cbt|soat|ft|ffct|imt|agent|oas|wt|sa|c)[-_]|AKIA|ASIA|ABIA|ACCA|ABSK|AIza|ya29\.|GOCSPX-|1//0"
    r"|nvapi-|[rs]k_(?:live|test)_|whsec_|xox[a-z]-|xapp-|dckr_|do[opr]_v1_|dp\.(?:pt|st|ct|sa|scim|audit)\.|shp(?:at|ca|pa|ss)_|AT(?:ATT|CTT|BB)"
    r"|NR(?:AK|AL|II|JS|RA)-|lin_(?:api|oauth)_|tskey-|SG\.|pypi-|rubygems_|hv[bsr]\.|pul-|pscale_|fig[dou]_|sntry[su]_|PMAK-|ops_eyJ|AGE-SECRET-KEY-)"
    r"(?=[\w./+-]{0,64}\d)[\w./+-]{13,}=*",
    r"(?:gsk|hf|r8|fw|api_org|npm|sbp|phx|bk[uacte]{2}|fm[12]|fo1|ntn|secret)_(?=\w{0,64}\d)\w{20,}|(?:sk|xai|pplx)-(?=[\w-]{0,99}\d)[\w-]{20,}",
    r"(?:dapi|SK|key-)[\da-z]{32}\b|oy2[a-z\d]{43}|s\.[A-Za-z\d]{24}(?![\w.])",  # Databricks, Twilio, Mailgun, NuGet, Vault
    r"K10[\da-f]{64}::?[\w:.-]+",  # k3s
    r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*){0,3}",  # JSON web token
    r"LS0tLS1CRUdJTi(?!BDRVJU|BQVUJM|BUUlVT)[\w+/=]{8,}",  # private PEM in base64
    r"01000000d08c9ddf[\da-z]{16,}",  # Windows' data protection
    r"\w{14}\.atlasv1\.[\w-]{20,}",  # Terraform
    r"[\w~.-]{3}\dQ~[\w~.-]{31,34}",  # Azure's client
    r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,45}|\d{8,10}:AA[\w-]{30,}",  # Discord, Telegram
    r"(?<!\.)[a-z\d]{6}\.(?=[a-z\d]{0,15}\d)(?=\d{0,15}[a-z])[a-z\d]{16}(?![\w.-])",  # bootstrap token
    r"(?:[Bb]asic|BASIC|[Bb]earer|BEARER|FlyV1)(?:[ \t]token)?[ \t]+((?<=[\"'].{6})[\w.~+/=-]{6,}(?=[\"'])|(?<=[\"'].{7})[\w.~+/=-]{6,}(?=[\"'])"
    r"|(?=[\w.~+/-]{0,99}[A-Z\d])[\w.~+/-]{8,}=*(?![\w\"'=]))",
)
# Hashes of passwords.
CRYPT = (
    r"\$(?:[156y]|2[abxy]|7|gy|apr1|md5|sha1|sha512|scrypt|argon2(?:id?|d)|pbkdf2-\w{1,9}|8\$|9\$)\$[./\w$=,+-]{8,}"
    r"|\{S?SHA(?:256|512)?\}[\w+/]{16,}=*|\*[0-9A-F]{40}\b|grub\.pbkdf2\.\w{1,20}\.[\w.]+"
)
# At the beginning or end of a word of a text in lower case.
PLACES = (
    r"(?:hooks\.slack\.com/\w{1,20}|discord(?:app)?\.com/api(?:/v\d{1,3})?/webhooks|office\.com/webhook\w{0,9}|pagerduty\.com/integration"
    r"|hooks(?=/\w{20}))/([^\s\"'<>?#\0]+)|api\.telegram\.org/(?:file/)?bot([^\s\"'<>?#\0]+)",
    r"(?:signature|sig)=([\w%/+-]{16,}=*)",
    r"(?<=[?&])(?:[\w.-]{0,40}-)?(?:code(?==[\w.%/-]{16})|key|sig|signature|p|pw|sas)=([^&\s\"'#\0]+)",
    rf"(?:machine|login)[ \t]+\S{{1,256}}\s{{1,99}}(?:login[ \t]+\S{{1,256}}\s{{1,99}})?(?:password|account)[ \t]+{VALUE}",  # netrc
    rf"psk[ \t]+(?=\"){VALUE}|(?<=:[ \t])(?:eap|xauth|ntlm|pin|ppk)[ \t]+{VALUE}(?=\"?[ \t]*$)",  # ipsec.secrets
    rf"(?:pass(?:in|out)?[ \t]+\"?pass:|stats[ \t]+auth[ \t]+[^\s:]{{1,64}}:|login=[^\s:]{{1,64}}:|static:[\w.@+-]{{1,99}}:(?!//)|tf_token_\w{{1,99}}=){VALUE}",
    rf"(?:(?:vault|wandb|cargo)[ \t]+login|(?:pro|ua|ubuntu-advantage)[ \t]+attach|kinit --password|operator unseal|secret set \S{{1,64}} --body|auth init -t|_authtoken|encrypt_string|auth-pass \S{{1,99}}"
    r"|add_user \S{1,64}|change_password \S{1,64}|user set password \d+|config http-basic\.\S{1,99} \S{1,64}|alias set \S{1,64} \S{1,256} \S{1,64}"
    rf")[ \t]{{0,9}}(?!-){VALUE}|from-literal[ \t=]?{FIELD}",
    rf"(?:microk8s join [\w.:-]{{1,99}}/|bundle config[ \t]+\S{{1,256}}[ \t]+[^\s:]{{1,64}}:){VALUE}",
    rf"htpasswd[ \t]+-\w{{0,9}}b\w{{0,9}}[ \t]+(?:-\w{{1,9}}[ \t]+)?\S{{1,256}}[ \t]+\S{{1,99}}[ \t]+{VALUE}",
    r"(?:sqlplus(?: -\w{1,9})?[ \t]+|thin:)[\w.$-]{1,64}/([^\s@\"']+)",
    rf"(?:snmp[\w-]{{0,16}}[ \t]+community[ \t]+|community(?:[_-]?(?:string|name))?[\\\"']{{0,9}}[ \t]{{0,9}}[:=][ \t]{{0,9}}(?!\w+(?:://|[ \t]+\w))){VALUE}",
    r"createuser[ \t]+\S{1,64}[ \t]+(\S[^\n]*)",  # SNMP's users
    r"passw(?:or)?d\b[^\n:=\"']{1,64}:[ \t]{1,9}[\"'`]?((?=[^\s\"']{0,64}\d)(?=[^\s\"']{0,64}[a-z])[^\s\"'`]{6,256})(?=[\"'`.]{0,2}[ \t]*$)",
    rf"(?:proxy_set_|request|set-)header(?:[ \t]+(?:set|add|append))?[ \t]+[\w-]{{0,40}}(?:token|key|secret|authorization)[ \t]+{VALUE}",
    r"(?:identified(?: with \w{1,40})?[ \t]+by|password[ \t]+for[ \t]+\S{1,64}[ \t]*=)[ \t]+('[^'\n]+'|\"[^\"\n]+\")",  # SQL
    r"user[ \t]+\S{1,64}[ \t]+on[ \t][^\n]{0,256}?>(\S+)",  # redis
    r"bearer\.authorization\.k8s\.io\.([\w-]+)",  # Kubernetes' protocol of browsers
    r"(?:unseal_)?keys(?:_b64|_hex|_base64)?\"[ \t]{0,9}:\s{0,64}\[([^\]\[{}]+)\]",  # Vault
    r"username\":[ \t]{0,9}\"[^\"\n]{1,64}\",\s{0,64}\"key\":[ \t]{0,9}\"([^\"\n]+)\"",  # Kaggle
    r"(?:md5(?![ \t]+[\da-f]{32}\b)|key-string|tacacs-server key|radius-server key|privilege \d{1,2} secret|enable secret)[ \t]+(?:\d[ \t]+)?((?=\S{0,64}\d)[^\s:]{6,})$",  # routers
    rf"(?:echo(?:[ \t]+-\w{{1,4}})?|printf(?:[ \t]+[\"']%s(?:\\n)?[\"'])?)[ \t]+{VALUE}[\"']?[ \t]{{0,9}}\|[ \t]{{0,9}}"
    r"(?:sudo[ \t]+-s|(?:sudo[ \t]+)?passwd|[^\n|]{0,256}--(?:password|with|pass)\S{0,9}-?(?:stdin|token))",
    rf"(?:sudo[ \t]+-s|passwd|password-stdin|stdin|with-token)[^\n<]{{0,256}}<<<[ \t]{{0,9}}{VALUE}",
)
# At the beginning of a line of a text in lower case, or of a diff's.
LINES = (
    r"[\w.*-]{1,99}:(?:\d{2,5}|\*):[\w.*-]{1,64}:[\w.*-]{1,64}:([^\s:][^\s]{0,999})$",  # pgpass
    r"\"?[^\s#*\"]{1,64}\"?[ \t]+(?:\*|\"[^\"\n]{1,64}\"|\S{1,64}(?=[ \t]+\"))[ \t]+([^\s*]+)[ \t]+\*[ \t]*$",  # chap-secrets
    r"((?!gpu-|mig-)(?=[^\s,]{0,99}\d)[\w.+/=-]{16,256}),[\w:.@-]{1,99},[\w:.@-]{1,99},\"[^\"\n]{1,999}\"$",  # file of tokens
    r"([\da-z]{32}|[\da-z-]{36}),[a-z][\w:.@-]{0,99},[\w:.@-]{1,99}$",  # the same, without groups
    rf"(?:(?:r[ow]|trap)community6?|authcommunity[ \t]+\S{{1,64}}|com2sec6?(?:[ \t]+-cn[ \t]+\S{{1,64}})?[ \t]+\S{{1,64}}[ \t]+\S{{1,64}})[ \t]+{VALUE}",
    r"private-lines: \d{1,4}\n((?:[+-]?[ \t]{0,16}[\w+/=]{1,128}\n)+)",  # PuTTY
    rf"rootpw(?:[ \t]+--[\w-]{{1,32}}){{0,4}}[ \t]+(?!-){VALUE}",  # kickstart, slapd
    r"\[?[\w.-]{1,99}\]?:\d{1,5}[ \t]+[\w.@+-]{1,99}:((?!//)\S+)",  # sasl_passwd
    r"[\w-]{0,40}(?:secret|token)[ \t]+\"([^\"\n]+)\"[ \t]{0,9};?$",  # bind, nginx
)
# What is a secret only where the text has one of some other words: formats, and programs whose flags are others' ports and users.
FLAG = r"-(?<![^\s\"'\[,]-)"
USER = _value(r"[^\s:\"'/=,]{0,99}:(?!\d+(?![^\s\"']))")
WITH = (
    ("addresses|chap-secrets|pap-secrets", r"^[+-]?\"?[^\s#*\"]{1,64}\"?[ \t]+[^\s#]{1,64}[ \t]+(\S+)[ \t]+(?:\*|[\d.:/*]{2,64})[ \t]*$"),
    ("superusers", r"^[+-]?[ \t]{0,16}password[ \t]+\S{1,64}[ \t]+(\S+)$"),
    ("kind: secret|kind: \"secret", r"^[+-]?(?P<indent>[ \t]*)(?:data|stringdata):[ \t]*\n(?P<value>(?!\s*\S{1,253}: \(hidden\))[+-]?(?P=indent)[ \t][^\n]*(?:\n[+-]?(?P=indent)[ \t][^\n]*)*)"),
    ("\"kind\":\"secret|\"kind\": \"secret", r"\"(?:data|stringdata)\":\s{0,64}\{([^{}]+)\}"),
    ("chpasswd", r"(?<![^\s\"'])[a-z_][\w-]{0,31}:([^\s\"':/][^\s\"']*)"),
    ("curl|ctr|wget|crictl|skopeo|podman|nerdctl|oras|etcdctl|govc|http|https|lftp|ftp", rf"{FLAG}(?:[a-z]{{0,6}}u|-user|-proxy-user|a|-auth|-http-user|-userpass){TO}{USER}"),
    ("curl", rf"{FLAG}(?:-oauth2-bearer{TO}|(?:b|-cookie){TO}[\"']?[\w.-]{{1,99}}=){VALUE}"),
    ("login|racadm|twine", rf"{FLAG}p{TO}(?!-|/|[\d:]+(?!\S)){VALUE}"),
    ("sshpass|mysql|mysqldump|mysqladmin|mariadb|mongo|mongosh|7z|7za|sqlcmd|ipmitool|zip|unzip", rf"{FLAG}p{TO}(?!-|/|\d+(?!\S)){VALUE}"),
    ("redis-cli|snmpwalk|snmpget|snmpbulkwalk", rf"{FLAG}[axc]{TO}(?!-){VALUE}"),
    ("ldapsearch|ldapadd|ldapmodify|ldapwhoami|ldapdelete|ldappasswd|ipa-client-install", rf"{FLAG}[was]{TO}(?!-){VALUE}"),
    ("suseconnect", rf"{FLAG}r{TO}(?!-){VALUE}"),
    ("openssl", rf"{FLAG}k{TO}(?!-){VALUE}"),
    ("smbclient|mount.cifs|rpcclient|net ads", rf"{FLAG}u{TO}[^\s%\"']{{1,99}}%([^\s\"']+)"),
    ("iscsiadm|nmcli", rf"\b(?:password(?:_in)?|psk|wep-key\d)[ \t]+(?:-v[ \t]+)?(?!-){VALUE}"),
)  # fmt: skip


Span = Tuple[int, int]
PEM = Shape(
    r"-{4,5} ?BEGIN ([A-Z0-9 ]{1,64}?) ?-{4,5}.*?(?:-{4,5} ?END \1 ?-{4,5}|\Z)|\$ANSIBLE_VAULT;[^\n]*(?:\n[ \t+-]*[\da-f]+(?=\n|\Z))*",
    re.DOTALL,
)
SHAPES = Shape(r"(?<![\w-])(?:%s)|%s" % ("|".join(TOKENS), CRYPT))
# Up to the last `@`: in a login, another one or a `/` is often not encoded.
LOGIN = Shape(
    r"://(?!@)(?=[^\s\"/?#]*@|(?!\[)[^\s\"/?#:]*:(?!//))([^\s\":]*(?::(?!//)[^\s\":]*)*)@(?!sha256:)"
)
PROXY = Shape(
    rf"proxy\w{{0,10}}{QUOTES}{SPACE}{{0,64}}[=:]?{SPACE}{{0,64}}[\"'\\]{{0,9}}([^\s\"'@:/]{{1,99}}:(?!//)[^\s\"'\0]*)?"
)
BEFORE_NAME = Shape(
    r"\bvalue[\\\"']{0,9}[ \t]{0,9}[:=][ \t]{0,9}[\\\"']{0,9}((?<=[\"'])[^\"'\n\\]{0,999}|[^\s\"',{}][^\n\"',{}]{0,999})"
    r"(?:[\\\"']{0,9}[\s,;+-]{1,64}[\\\"']{0,9}(?:name|key)[\\\"']{0,9}[ \t]?[:=][ \t]?[\\\"']{0,9}(?P<name>[\w.-]{1,128}))?"
)
RULES = [
    (hints.split("|"), Shape(pattern, re.MULTILINE))
    for hints, pattern in (
        ("", r"\b(?=\w)(?:%s)" % "|".join(PLACES)),
        ("", r"^[+-]?[ \t]{0,32}(?:%s)" % "|".join(LINES)),
        *WITH,
    )
]
MANY = 10000  # secrets, or their names; a text with more of them has no reader


def redact(text: str) -> str:
    """The text with keys, passwords and tokens replaced by their kind and length. Idempotent."""
    if "---BEGIN" in text or "--- BEGIN" in text or "$ANSIBLE_VAULT" in text:
        text = PEM.sub(_block, text)
    text = re.sub(r"<secret, (\d+) characters>", "\0\\1\0", text)
    for find in (partial(_matches, SHAPES), _logins, _secrets, _proxies, _before_names):
        text = _hide(text, find(text))
    lower = lower_case(text)
    for hints, pattern in RULES:
        if any(hint in lower for hint in hints):
            text = _hide(text, _matches(pattern, lower))
            lower = lower_case(text)
    return re.sub(r"\0(\d+)\0", r"<secret, \1 characters>", text)


def redact_values(value: Any) -> Any:
    """A document of JSON with the strings in it redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_values(item) for key, item in value.items()}
    return [redact_values(item) for item in value] if isinstance(value, (list, tuple)) else value


def placeholder(secret: str) -> str:
    return "<secret, %d characters>" % len(secret)


def _hide(text: str, spans: Iterable[Span]) -> str:
    """The text with placeholders for these spans: each is one word that no pattern matches."""
    shown: List[str] = []
    done = 0
    for start, end in spans:
        if start >= done and _is_secret(text, start, end):
            end = len(text) if len(shown) > 2 * MANY else end
            shown += [text[done:start], "\0%d\0" % (end - start)]
            done = end
    return "".join([*shown, text[done:]])


def _is_secret(text: str, start: int, end: int) -> bool:
    value = text[start:end]
    return not PLAIN.fullmatch(value) and not ("\0" in value and not value.strip("\0 0123456789"))


def _block(match: Match[str]) -> str:
    kind = match[1].lower() if match[1] else "ansible vault"
    if kind.endswith(("certificate", "public key")):
        return match[0]
    return "<%s, %d characters>" % (kind, len(match[0]))


def _matches(pattern: Shape, text: str) -> Iterator[Span]:
    for match in pattern.finditer(text):
        yield match.span(match.lastindex or 0)


def _logins(text: str) -> Iterator[Span]:
    """User names and passwords in URLs."""
    for login in LOGIN.finditer(text):
        before = text[max(0, login.start() - 21) : login.start()]
        lead = before.rstrip(WORD + "+")
        quote = login[1].find("'") if lead.endswith("'") else -1
        match = login if quote < 0 else LOGIN.match(text, login.start(), login.start(1) + quote)
        user = before[len(lead) :].lower().endswith(("ssh", "sftp", "rsync"))  # alone, it is no secret
        if match and (":" in match[1] or not user):
            yield match.span(1)


def _secrets(text: str) -> Iterator[Span]:
    """The values of names that hold a secret."""
    done = 0
    for count, match in enumerate(NAME.finditer(lower_case(text))):
        if count > MANY:
            yield max(done, match.start()), len(text)
            return
        if match.start() >= done and is_secret_at(text, match):
            for start, end in spans(text, match):
                yield start, end
                done = end if _is_secret(text, start, end) else done


def _proxies(text: str) -> Iterator[Span]:
    """Logins of proxies without a scheme."""
    for match in PROXY.finditer(lower_case(text)):
        at = (match[1] or "").rfind("@")
        if at >= 0 and not match[1].startswith("@sha256:", at):
            yield match.start(1), match.start(1) + at


def _before_names(text: str) -> Iterator[Span]:
    """Values that stand before their names, as in lists of variables."""
    for match in BEFORE_NAME.finditer(lower_case(text)):
        if match["name"] and is_secret(text[match.start("name") : match.end("name")]):
            yield match.span(1)
