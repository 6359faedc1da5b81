"""Names that hold a secret, and values that are none."""

import re
from typing import Match

# Names that end like this hold a secret, in English and in other languages of Europe. Lower case.
STEMS = (
    r"passw(?:or)?ds?|passphrase|passcode|passwort|passwörter|passord|passe|pass|kennwort|contrase(?:n|ñ|n\u0303)a|senha|wachtwoord|parola"
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
NAME = re.compile(rf"(?:{STEMS})(?P<suffix>{SUFFIX})(?![\w.-])")
# Words behind a name that are none of its values.
PROSE = re.compile(
    r"(?:and|or|is|are|was|were|to|in|for|with|without|from|of|as|on|at|by|if|when|that|this|the|a|an|not|no|only|must|may|can|cannot|should|will"
    r"|has|have|had|flag|flags|option|options|argument|file|field|value|values|needs?|requires?|required|missing|expired|incorrect|changed"
    r"|mismatch|authentication|auth|prompt|reset|updated|accepted|rejected|denied|failed|invalid|unset|empty|found|store|manager|policy|age|hash"
    r"|hashes|secret|auth(?:enticat|oriz)\w+|valid\w*|rotat\w+|controller|review|cleaner|service|provider|reader|instead|itself|string|length|protected)"
    r"[.:,;)!?]*",
    re.IGNORECASE,
)
# No secrets: settings, references, file paths, databases of users, text that is already redacted.
PLAIN = re.compile(
    r"(?:true|false|null|nil|none|yes|no|on|off|~|undefined|unset|enabled|disabled|required|optional|\*+|x+|-+|\.\.\.|…|<nil>|<none>|<unset>|<set>"
    r"|\[REDACTED\]|<redacted>|\(hidden\))?[,;]?"
    r"|(?:/[\w.@-]+)+\.(?:asc|conf|crt|env|gpg|jwt|json|key|pem|pub|txt|toml|ya?ml)|[\w.-]{1,64}\.(?:jwt|key|pem|crt|json|ya?ml|txt|go:\d+:?)"
    r"|(?:[\w.-]{1,64}:)?/(?:(?:etc|var|run|usr|home|root|opt|tmp|srv|mnt|dev|proc|sys|data|lib)(?:/[\w.@:-]*)*)?"
    r"|\$\{[^}\n]*\}|\$\([^)\n]*\)|\{\{[^\n]*\}\}|(?:files|compat|sss|systemd|db|nis|ldap|winbind)(?: (?:files|compat|sss|systemd|db|nis|ldap|winbind|\[[^\]\n]*\]))*"
    r"|password (?:unchanged|updated|expiry)[^\n]*|\0\d+\0|\*[\w-]{1,64}",
    re.IGNORECASE,
)


def secret(name: str) -> bool:
    """True if a field or variable of this name holds a secret."""
    return any(found.end() == len(name) and holds(name, found) for found in NAME.finditer(folded(name)))


def folded(text: str) -> str:
    """The text in lower case, with each character at its place."""
    return text.replace("İ", "i").lower()  # no other character gets longer


def holds(text: str, found: Match[str]) -> bool:
    """True if the name that ends with this stem holds a secret."""
    stem, start = found[0][: found.start("suffix") - found.start()], found.start()
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
