"""What is shown of text with secrets in it, in the formats that hosts and clusters have them in."""

from __future__ import annotations

import time

import pytest

from gpunode.agent.names import secret
from gpunode.agent.redaction import redacted

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6Ing3azJwIn0.eyJzdWIiOiJzeXN0ZW06c2EifQ.hunter2-hunter2_hunter2"
SECRETS = {  # each has `hunter2` in what must not be shown, and nothing else of it
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
    "PEM cut off": "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\nhunter2",
    "PEM in a JSON string": '"-----BEGIN EC PRIVATE KEY-----\\nhunter2\\n-----END EC PRIVATE KEY-----\\n"',
    "URL": "URIs: https://me:hunter2@mirror.example/x",
    "URL with @ and /": "deb [signed-by=/k.gpg] https://me:hunter2@hun/ter2hunter2@mirror.example/x bookworm main",
    "URL with /": "https://me:hunter2/hunter2@mirror.example/x",
    "URL with digits and /": "https://me:2/hunter2@mirror.example/x",
    "URL with a token alone": "https://hunter2@git.example/x",
    "URL with a token as name": "https://hunter2:x-oauth-basic@git.example/x",
    "URL of ssh": "ssh://git:hunter2@git.example/x",
    "second of two URLs": "http_proxy=http://proxy:3128,https://me:hunter2@proxy:3128",
    "URL in an assignment": 'Environment="HTTPS_PROXY=http://me:hunter2@proxy:3128" "NO_PROXY=a,b"',
    "proxy without a scheme": "HTTPS_PROXY=me:hunter2@proxy:3128",
    "proxy without a scheme in JSON": '"proxies": {"https-proxy": "me:hunter2@hun/ter2hunter2@proxy:3128"}',
    "proxy without a scheme in a unit": 'Environment="HTTP_PROXY=me:hunter2@proxy:3128" "NO_PROXY=a,b"',
    "apt.conf": 'Acquire::http::Proxy "http://me:hunter2@proxy:3128";',
    "apt's URIs": "'https://me:hunter2@mirror.example/a_1.deb' a_1.deb 12 SHA256:ab",
    "query": "https://a.example/x?se=1&sig=hunter2&sp=r",
    "signed query": "https://a.example/x?X-Amz-Signature=hunter2",
    "query with a key": "https://a.example/x?key=hunter2",
    "query with a token": "https://a.example/x?access_token=hunter2",
    "netrc": "machine mirror.example login me password hunter2",
    "netrc in lines": "machine mirror.example\n  login me\n  password hunter2\n",
    "Bearer": "Authorization: Bearer hunter2",
    "Basic": "curl: -H 'Authorization: Basic hunter2='",
    "Bearer in a sentence": "the proxy got Authorization: Bearer hunter2, and refused",
    "Bearer alone": "token was Bearer hunter2hunter2",
    "X- header": "X-Token: hunter2",
    "X- header in quotes": "curl -H 'X-Auth-Token: hunter2' https://a.example",
    "JFrog's header": "X-JFrog-Art-Api: hunter2",
    "cookie": "Set-Cookie: session=hunter2; Path=/",
    "TOML": "registry_token = 'hunter2'",
    "TOML with a quote in it": r'password = "a\"hunter2"',
    "TOML in three quotes": 'password = """\nhunter2\n"""',
    "TOML's array": 'X-Token = ["hunter2", "a]hunter2"]',
    "TOML's array in lines": 'Authorization = [\n  "Bearer hunter2",\n  "hunter2"\n]',
    "TOML's header": '[host."https://a.example".header]\n  Authorization = "Basic hunter2"',
    "containerd's auth": 'auth = "hunter2"',
    "JSON": '{"user": "me", "password" : "hunter2"}',
    "JSON's array": '{"tokens": 1, "token": ["hunter2"]}',
    "JSON without spaces": '{"a":1,"identitytoken":"hunter2","b":2}',
    "JSON in a string": r'"{\"auths\":{\"a\":{\"auth\":\"hunter2\"}}}"',
    "docker's config": '"auth": "hunter2"',
    "daemon.json": '"log-opts": {"splunk-token": "hunter2"}',
    "ini": "aws_secret_access_key = hunter2 hunter2",
    "ini in a section": "[default]\naws_session_token=hunter2\nregion = x",
    "yum's": "[x]\nusername=me\npassword=hunter2\nproxy_password = hunter2",
    "environment file": "REGISTRY_PASS=hunter2",
    "exported": "export DOCKER_PWD=hunter2",
    "environment file with a quote": "VAULT_TOKEN='hunter2 hunter2'",
    "environment file with a space": "DB_PASSWORD=hunter2 hunter2",
    "unit": 'Environment="AWS_SECRET_ACCESS_KEY=hunter2 hunter2" "VAULT_TOKEN=hunter2"',
    "unit without quotes": "Environment=A=1 VAULT_TOKEN=hunter2 B=2",
    "flag": "KUBELET_EXTRA_ARGS=--bootstrap-token=hunter2 --v=2",
    "flag and argument": "docker login --username me --password hunter2 a.example",
    "YAML": "password: hunter2 hunter2",
    "YAML in a list": "- token: hunter2",
    "YAML in quotes": "dbPass: 'it''s hunter2'",
    "YAML's flow": "{user: me, password: hunter2}",
    "YAML's block": "password: |\n  hunter2\n  hunter2\nuser: me",
    "YAML's folded block": "a:\n  secret: >-\n    hunter2\n  b: 1",
    "YAML's list": "token:\n- hunter2\n- hunter2\nuser: me",
    "kubeconfig": "client-key-data: hunter2",
    "pull secret": ".dockerconfigjson: hunter2",
    "in a diff": "+  password: hunter2",
    "in a message": "401: user=me password=hunter2 is wrong",
    "in a message with the line": "/etc/x.toml:3: password = hunter2 is not known",
    "password in a sentence": "password hunter2 is wrong",
    "passwd in a sentence": "login failed: passwd hunter2",
    "password is": "the password is hunter2",
    "key in a sentence": "apikey hunter2",
    "key in two words": "api key 'hunter2'",
    "access key in a sentence": "Access Key hunter2x",
    "token in a sentence": "token 8f2c1hunter2d4e5f6",
    "curl": "curl -sS -u user:hunter2 https://a.example",
    "curl without a space": "curl -uuser:hunter2 https://a.example",
    "curl in quotes": "curl --user 'user:hunter2' https://a.example",
    "docker login": "docker login -u me -p hunter2 registry.example",
    "sshpass": "sshpass -p hunter2 ssh gpu-01",
    "PGPASSWORD": "PGPASSWORD=hunter2 psql -h db",
    "MYSQL_PWD": "env MYSQL_PWD=hunter2 mysql",
    "token flag": "gpunode-x --token hunter2",
    "header of another scheme": "curl -H 'Authorization: ApiKey hunter2' https://a.example",
    "header alone of another scheme": "Authorization: Negotiate hunter2==",
    "Slack": "https://hooks.slack.com/services/T0/B0/hunter2",
    "Discord": "POST https://discord.com/api/webhooks/123/hunter2: 404",
    "Discord's version": "https://discordapp.com/api/v10/webhooks/123/hunter2",
    "Teams": "https://a.webhook.office.com/webhookb2/x@y/IncomingWebhook/hunter2",
    "Teams of old": "https://outlook.office.com/webhook/x@y/IncomingWebhook/hunter2",
    "Telegram": "https://api.telegram.org/bot123:hunter2/sendMessage",
    "PagerDuty": "https://events.pagerduty.com/integration/hunter2/enqueue",
    "Mattermost": "https://chat.example/hooks/hunter2hunter2hunter2hunter2",
    "signature outside a URL": "X-Amz-Signature=hunter2hunter2hunter2",
    "signature in a header": "Credential=AKIAIOSFODNN7EXAMPLE/x, SignedHeaders=host, Signature=hunter2hunter2hunter2",
    "signature as a header": "X-Amz-Security-Token: hunter2",
    "GitHub": "remote: ghp_hunter2hunter2hunter2hunter2hunt denied",
    "GitHub's new": "github_pat_11hunter2_hunter2hunter2hunter2",
    "GitLab": "glpat-hunter2hunter2hunter2",
    "Google": "AIzahunter2hunter2hunter2hunter2hunter2",
    "Google's access": "ya29.hunter2hunter2hunter2hunter2",
    "OpenAI": "sk-proj-hunter2hunter2hunter2",
    "Hugging Face": "HTTP 401 for hf_hunter2hunter2hunter2hunter2",
    "NGC": "docker: nvapi-hunter2hunter2hunter2hunter2",
    "Slack's bot": "xoxb-1-hunter2hunter2",
    "Docker": "dckr_pat_hunter2hunter2hunter2",
    "npm": "npm_hunter2hunter2hunter2hunter2hunter2",
    "PyPI": "pypi-hunter2hunter2hunter2hunter2hunter2",
    "Vault": "hvs.hunter2hunter2hunter2hunter2",
    "k3s": f"K10{'0a' * 32}::server:hunter2",
    "JSON web token": f"got {JWT} from it",
}  # fmt: skip


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS)
def test_secrets_appear_by_their_size(text: str) -> None:
    """In whichever format; what was left out once is left as it is."""
    shown = redacted(text)
    assert "hunter2" not in shown
    assert "ter2hunter" not in shown
    assert "characters>" in shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("URIs: https://me:pw@m.example/x", "URIs: https://<secret, 5 characters>@m.example/x"),
        ('"password": "ab",', '"password": "<secret, 2 characters>",'),
        ("password: |\n  ab\n  cd\nuser: me", "password: |\n  <secret, 7 characters>\nuser: me"),
        ("-k --token=ab --v=2", "-k --token=<secret, 2 characters> --v=2"),
        ("Authorization: Bearer ab", "Authorization: Bearer <secret, 2 characters>"),
        ('t = ["x"]\nX-Token = ["ab", "c"]', 't = ["x"]\nX-Token = ["<secret, 2 characters>", "<secret, 1 characters>"]'),
        ("machine m login me password ab\nmachine n", "machine m login me password <secret, 2 characters>\nmachine n"),
    ],
)  # fmt: skip
def test_what_is_around_a_secret_is_left(text: str, shown: str) -> None:
    """Who reads it sees where it is."""
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "deb [signed-by=/usr/share/keyrings/a.gpg] https://mirror.example:8080/debian bookworm main",
        "https://github.example/a/b@v1.2",
        "docker://registry.example:5000/a/b@sha256:0123",
        "https://[fd00::1]:6443/a@b",
        "ssh://git@git.example/x",
        "the address admin@example.org",
        "NO_PROXY=localhost:1,10.0.0.1:2",
        "HTTP_PROXY=proxy:3128 # ask admin@example.org",
        'proxy = "registry.example:5000/a@sha256:0123"',
        "failed to fetch anonymous token: unexpected status from GET request to https://auth.example/token: 401",
        'WWW-Authenticate: Bearer realm="https://auth.example/token",service="registry.example"',
        "no basic auth credentials",
        "Basic authentication is off",
        "sudo: a password is required",
        "--token and --password are needed",
        "tokenFile: /var/lib/a/token",
        "private_key = /etc/ssl/a.key",
        "automountServiceAccountToken: false",
        "disable_auth = true",
        "--authentication-token-webhook=true --authorization-mode=Webhook --tls-private-key-file=/a/b",
        "secret:\n  secretName: a\n  items: []",
        "imagePullSecrets: []",
        "compass: north",
        "bypass=1",
        "authentication:\n  anonymous:\n    enabled: false",
        "Signed-By: /etc/apt/keyrings/a.asc",
        "max-concurrent-downloads: 3",
        'password = ""',
        "password file not found",
        "the password was changed at 10:30",
        "password for gpu-01: refused",
        "password of user1 expired",
        "sudo: 3 incorrect password attempts",
        "token service of registry.example is away",
        "token v1beta1 is unknown",
        "token expired 2 hours ago",
        "secret gpunode-pull-2 not found",
        'secrets "registry-2" is forbidden',
        "the key 8793F200 signs it",
        "API key rotation is due",
        "access key expired!",
        "sha256:0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9",
        "image id 0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9, login shell",
        "GPU-5d3c1f2e-0a1b-2c3d-4e5f-60718293a4b5: authentication",
        "docker run -u 1000:1000 -p 8080:80 image",
        "ssh -p 2222 host # login",
        "mkdir -p /var/lib/x && curl -fsSL https://a.example/x",
        "systemctl --user status a:b",
        "/usr/share/containers/oci/hooks/nvidia-container-toolkit-hook.json",
        "https://a.example/docs/hooks/overview",
        "signature=valid",
        "signature verification failed",
        "disk-0123456789abcdef0123456789 is full",
        "global-security-settings-of-the-cluster",
        "glibc-2.36-9+deb12u4 nvidia-driver-580.178.04-1",
        "kubelet basic-auth-file-removed",
    ],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    """Settings, paths, and programs' words about secrets."""
    assert redacted(text) == text


def test_names_of_secrets() -> None:
    """Of variables and fields, where name and value are told apart."""
    for name in (
        "TOKEN",
        "DB_PASS",
        "dbPass",
        "registry-password",
        "AWS_SECRET_ACCESS_KEY",
        "api_key",
        "auth",
    ):
        assert secret(name), name
    for name in ("TOKEN_FILE", "COMPASS", "AUTHOR", "KEY", "PASSED", "NODE_NAME"):
        assert not secret(name), name


@pytest.mark.parametrize(
    "unit",
    [
        "token",
        "a",
        '"',
        "token=",
        "proxy=a:",
        'token="',
        "token: [",
        "https://a@",
        "token: |\n ",
        " ",
        "-----BEGIN A-----",
        'X="""',
        "password a1",
        "apikey ",
        "token is ",
        "curl -u a:",
        "-p ",
        "hooks.slack.com/",
        "://a/hooks/",
        "signature=",
        "sk-a",
        "ghp_",
        "K10",
        "eyJ.",
        "1",
        "AA",
        "a-",
        "password\t",
    ],
)
def test_hostile_text_costs_no_more_than_its_length(unit: str) -> None:
    """Twice as long takes about twice as long: a host cannot stop who looks at it."""
    times = []
    for count in (4000, 32000):
        text = f"password={unit * count}"
        start = time.process_time()
        redacted(text)
        times.append(time.process_time() - start)
    assert times[1] < 40 * max(times[0], 0.02)
