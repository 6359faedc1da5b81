"""What is shown of text with secrets in it, in the formats that hosts and clusters have them in."""

import re
import time

from gpunode.agent import redaction
from gpunode.agent.redaction import redact
from gpunode.agent.values import is_secret
from tests import cases, tables

HIDDEN, FORMATS, KEPT = (cases.read(f"redaction/{name}.yaml") for name in ("hidden", "formats", "kept"))
SECRETS = [*HIDDEN.values(), *FORMATS]


def test_secrets_appear_by_their_size():
    """In whichever format."""
    shown = {text: redact(text) for text in SECRETS}
    leaked = [
        (text, after)
        for text, after in shown.items()
        if "hunter2" in after or "ter2hunter" in after or "characters>" not in after
    ]
    assert not leaked


def test_what_is_redacted_stays_as_it_is():
    """Redacting again changes nothing."""
    shown = [redact(text) for text in SECRETS]
    changed = [(once, twice) for once in shown if (twice := redact(once)) != once]
    assert not changed


def test_usual_text_is_kept():
    """Settings, hashes, identifiers, paths, versions, and what programs report about secrets."""
    changed = [(text, shown) for text in KEPT if (shown := redact(text)) != text]
    assert not changed


def test_each_pattern_finds_a_case():
    """A pattern that finds none is not tested, or not needed."""
    texts = "\n".join(SECRETS)
    places = *redaction.PLACES, *redaction.LINES, *(pattern for _, pattern in redaction.WITH)
    unused = [pattern for pattern in (*redaction.TOKENS, redaction.CRYPT) if not re.search(pattern, texts)]
    unused += [place for place in places if not re.search(place, texts.lower(), re.MULTILINE)]
    assert not unused


@tables.rows("around-secrets")
def test_what_is_around_a_secret_is_left(text: str, shown: str):
    """Who reads it sees where it is."""
    assert redact(text) == shown


def test_names_of_secrets():
    """Of variables and fields, where name and value are told apart."""
    hold = ["TOKEN", "DB_PASS", "dbPass", "registry-password", "AWS_SECRET_ACCESS_KEY", "api_key", "auth"]
    others = ["TOKEN_FILE", "COMPASS", "AUTHOR", "KEY", "PASSED", "NODE_NAME"]
    assert [name for name in hold + others if is_secret(name)] == hold


def test_a_text_with_very_many_names_ends_hidden():
    """No reader reads so many, and each takes time."""
    shown = redact("a token=hunter2 " * 12_000)
    assert "hunter2" not in shown
    assert shown.startswith("a token=<secret, 7 characters> a token=<secret, 7 characters>")


def test_hostile_text_costs_no_more_than_its_length():
    """Text eight times as long takes about eight times as long: a host cannot stop who looks at it."""
    units = (
        *("token", "a", '"', "token=", "proxy=a:", 'token="', "token: [", "https://a@", "token: |\n ", " ", "-----BEGIN A-----"),
        *('X="""', "password a1", "apikey ", "token is ", "curl -u a:", "-p ", "hooks.slack.com/", "://a/hooks/", "signature="),
        *("sk-a", "ghp_", "K10", "eyJ.", "1", "AA", "a-", "password\t", '"a=', "'\"", "'\\''", '\\"', '\\\\"', "'a',", "token={"),
        *("token={name:a,", "://a:", "://[", "'http://a'@", "password:\n a: b\n", "value=", "com2sec a ", "\n", "\\", "İ"),
    )  # fmt: skip
    slow = []
    for start in ("", "password="):
        for unit in units:
            times = []
            for count in (500, 4000):
                begin = time.process_time()
                redact(start + unit * count)
                times.append(time.process_time() - begin)
            if times[1] > 40 * max(times[0], 0.005):
                slow.append((start, unit, times))
    assert not slow


def test_names_below_each_other_are_read_a_bounded_number_of_times():
    """Each line of YAML may belong to all the names above it."""
    times = []
    for depth in (100, 400):
        text = "".join(f"{' ' * deep}password:\n{' ' * deep} name: x\n" for deep in range(depth))
        begin = time.process_time()
        redact(text)
        times.append((time.process_time() - begin) / len(text))
    assert times[1] < 10 * max(times[0], 1e-6)
