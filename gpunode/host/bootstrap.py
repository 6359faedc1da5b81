"""The agent as one text, and the command that starts it on a host, with a Python that root may run; and why it did not start."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gpunode.errors import AgentFailed, AgentUnusable, HostError, PasswordRefused, SudoRefused
from gpunode.local.password import PROMPT
from gpunode.model import PythonBuild
from gpunode.wording import advise

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("agent/*.py", "**/on_host.py", "**/on_host/*.py")
DOCSTRING = re.compile(r'(?m)^( *)"""[^\n"](?s:.*?)"""$')
LOADER = '''\
"""gpunode's agent: SOURCES holds its modules by name, without their docstrings."""
import sys
from importlib.machinery import ModuleSpec
SOURCES = {{
{sources}}}
class Modules:
    """Imports from SOURCES. A traceback names a module's file and shows its lines, though there is no such file."""
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return ModuleSpec(name, self, is_package=name in {packages})
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        file = module.__name__.replace(".", "/") + ".py"
        exec(compile(SOURCES[module.__name__], file, "exec"), module.__dict__)
    def get_source(self, name):
        return SOURCES[name]
sys.meta_path.insert(0, Modules())
def excepthook(*error):
    import traceback
    traceback.print_exception(*error)
sys.excepthook = excepthook
from gpunode.engine.on_host.jobs import detached, main
if __name__ == "__main__":
    detached(*sys.argv[1:])
'''


@functools.cache
def sources() -> Mapping[str, str]:
    """The text of every module that is sent, by name; packages are empty."""
    paths = sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)})
    sent = {
        ".".join(("gpunode", *path.relative_to(ROOT).with_suffix("").parts)): without_docstrings(
            path.read_text(encoding="utf-8")
        )
        for path in paths
        if path.name != "__init__.py"
    }
    return {**dict.fromkeys(packages(sent), ""), **sent}


def packages(names: Iterable[str]) -> tuple[str, ...]:
    """The packages that these modules are in, outermost first."""
    parts = [name.split(".") for name in names]
    return tuple(sorted({".".join(part[:depth]) for part in parts for depth in range(1, len(part))}))


def without_docstrings(text: str) -> str:
    """A module without its docstrings; every statement keeps its line."""
    return DOCSTRING.sub(lambda match: match[1] + '""' + "\n" * match[0].count("\n"), text)


@functools.cache
def program() -> str:
    """The text, run as a file with a verb and a run's name, or executed for its `main(program, job)`."""
    texts = sources()
    entries = "".join(f"'{name}': r'''{text}''',\n" for name, text in texts.items())
    return LOADER.format(sources=entries, packages=tuple(name for name, text in texts.items() if not text))


# One line without quotes, backslashes or exclamation marks, so that every login shell passes it on unchanged.
# It prints READY when sudo has its password: from then on this program reads the input.
BOOTSTRAP = (
    "import sys;"
    "m=[n for n in (#json#,#zlib#,#fcntl#,#subprocess#,#typing#)"
    "if not any(f.find_spec(n,None)for f in sys.meta_path)]or[#3.6#]*(sys.version_info<(3,6));"
    "m and sys.exit(print(#@gpunode-unusable#,sys.version.split()[0],*m)or 3);"
    "print(chr(10)+#@gpunode-ready#,flush=True);import zlib;f=sys.stdin.buffer;"
    "h=next((l.split()for l in iter(f.readline,b##)if l.startswith(b#gpunode-agent 1 #)),0)or sys.exit(4);"
    "p=zlib.decompress(f.read(int(h[2])));j=f.read(int(h[3]));"
    "g=dict(__name__=#agent#);exec(compile(p,#agent.py#,#exec#),g);g[#main#](p,j)"
).replace("#", '"')

# Root's python is not taken from a PATH that the user, or an attacker in the user's account, has set. The order is that
# of every distribution's own PATH; two are patterns. Of RHEL 8, whose python3 is optional; of backports; of `unpacks`.
PLACE = "/opt/gpunode"
PYTHONS = (
    "/usr/local/bin/python3",
    "/usr/bin/python3",
    "/usr/libexec/platform-python",
    "/usr/local/bin/python3.[0-9]*",
    "/usr/bin/python3.[0-9]*",
    f"{PLACE}/python/bin/python3",
)
# sudo gets the user's password, so the PATH of the user comes last. The third is that of NixOS.
SUDO_PATH = "/usr/bin:/bin:/run/wrappers/bin"
# How root installs one where there is none, by the program that does it.
INSTALLS: Mapping[str, str] = {
    "apt-get": "apt-get -q update; DEBIAN_FRONTEND=noninteractive apt-get -q -y install python3",
    "dnf": "dnf -q -y install python3",
    "yum": "yum -q -y install python3",
    "zypper": "zypper -q -n install python3",
}
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_NO_PYTHON = "@gpunode-no-python3"
_INSTALLER = "@gpunode-by"
_NOT_THERE = "@gpunode-python-not-there"
_UNUSABLE = "@gpunode-unusable"
_NO_SUDO = "@gpunode-no-sudo"


def command(sudo: bool, password: bool, python: str = "", install: str = "") -> str:
    """The command to execute on the host. `password`: sudo may ask for one with PROMPT and reads it from stdin.

    It runs `python`, else the first of PYTHONS that is new enough, else the first, which then says why it cannot; with
    `install`, a command of the host's shell, a host without any gets one first.
    """
    first = f"$(for i in {' '.join(INSTALLS)}; do command -v $i >/dev/null && echo $i && break; done)"
    plain, none = '"$p" -I -S -c "$1"', f"echo {_INSTALLER} {first}; echo {_NO_PYTHON}"
    run = '/bin/sh -c "$2" gpunode "$1"' if install else plain
    own = f'{{ [ -n "$p$2" ] || p=$(command -v python3) || {{ {none}; exit 1; }}; exec {run}; }}'
    start = own
    if sudo:
        ask = f'-S -p "{PROMPT}"' if password else "-n"
        start = (
            f'[ "$(id -u)" = 0 ] && {own}; '
            f"s=$(PATH={SUDO_PATH}:$PATH; command -v sudo) || {{ echo {_NO_SUDO}; exit 1; }}; "
            f'[ -n "$p$2" ] || {{ {none} $(command -v python3); exit 1; }}; '
            f'PATH={ROOT_PATH}; export PATH; exec "$s" {ask} -- {run}'
        )
    search = _search_python()
    if python:
        search = f"p={python}; [ -x $p ] || {{ echo {_NOT_THERE} $p; exit 1; }}"
    script = f"LC_ALL=C; export LC_ALL; {search}; {start}"
    parts = [f"exec /bin/sh -c '{script}' gpunode '{BOOTSTRAP}'"]
    if install:
        parts.append(f"'{{ {install}; }} >&2; {_search_python()}; exec {plain}'")
    return " ".join(parts)


def _search_python() -> str:
    """Sets `p`, for a shell: the first of PYTHONS that is new enough, else the first that is there."""
    # -V ends before Python is set up: a tenth of what a program costs. Python 2 answers on stderr.
    new = 'case $("$p" -V) in "Python 3."[0-5].*) ;; "Python 3."*) break ;; esac'
    each = f'[ -x "$p" ] && {{ o=${{o:-$p}}; {new}; }}; p='
    return f"o=; for p in {' '.join(PYTHONS)}; do {each}; done 2>/dev/null; p=${{p:-$o}}"


def unpack_command(build: PythonBuild) -> str:
    """The command by which plain sh fetches a build, compares its SHA-256, and unpacks it below PLACE; without quotes
    that a login shell would take for its own."""
    fetch = f'{{ curl -fsSL -o $t/p "{build.url}" || wget -q -O $t/p "{build.url}"; }}'
    check = f'echo "{build.sha256}  $t/p" | sha256sum -c -'
    put = f"tar --no-same-owner -xzf $t/p -C $t && rm -rf {PLACE}/python && mv $t/python {PLACE}/python"
    return f"mkdir -p {PLACE} && t=$(mktemp -d {PLACE}/XXXXXX) && {fetch} && {check} && {put}; rm -rf $t"


def explain(
    host: str, noise: Sequence[bytes], stderr: str, status: int | None, build: PythonBuild | None = None
) -> HostError:
    """Why the agent's answer is incomplete, from the other output. `build`: what the inventory has for such a host."""
    printed = [line.decode(errors="replace").strip() for line in noise]
    for line in printed:
        if line.startswith(_NO_PYTHON) and line != _NO_PYTHON:
            return AgentUnusable(
                host,
                f"its only python3 is {line.split(maxsplit=1)[1]}, which gpunode does not run as root unasked",
                hint="Install the distribution's python3, set `python:` to its path in the inventory, or log in as root.",
            )
        if line.startswith(_NOT_THERE):
            return AgentUnusable(
                host,
                f"it has no {line.split(maxsplit=1)[1]}, which `python:` in the inventory names",
                hint="Correct the path, or take it out: gpunode then looks for Python itself.",
            )
        if build is not None and (line.startswith(_NO_PYTHON) or line.split()[::2] == [_UNUSABLE, "3.6"]):
            version = line.partition(" ")[2].partition(" ")[0]
            return AgentUnusable(
                host,
                f"its python3 is {version}; 3.6 or newer is needed" if version else "it has no python3",
                hint=advise(f"`gpunode provision` unpacks the one of {build.url} into {PLACE}/python."),
                install=unpack_command(build),
            )
        if line.startswith(_NO_PYTHON):
            installers = [name for name in INSTALLS if f"{_INSTALLER} {name}" in printed]
            return AgentUnusable(
                host,
                "it has no python3",
                hint=advise(f"`gpunode provision` installs it: `{INSTALLS[installers[0]]}`.")
                if installers
                else "Install Python 3.6 or newer.",
                install=INSTALLS[installers[0]] if installers else "",
            )
        if line.startswith(_NO_SUDO):
            return SudoRefused(
                host, "it has no sudo", hint="Install sudo, or log in as root with `sudo: false`."
            )
        if line.startswith(_UNUSABLE):
            version, *missing = line.split()[1:]
            if missing == ["3.6"]:
                return AgentUnusable(
                    host,
                    f"its python3 is {version}; 3.6 or newer is needed",
                    hint="Install a newer python3, or set `python:` in the inventory to a standalone build (url, sha256; needed on Ubuntu 16.04) or to an installed Python's path.",
                )
            return AgentUnusable(
                host,
                f"its python3 ({version}) has no module{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
                hint="Install all of it: `apt install python3` (python3-minimal is not enough).",
            )
    refused = _sudo_error(host, stderr)
    if refused:
        return refused
    output = "\n".join(line for line in [*printed, *stderr.splitlines()] if line.strip())[-800:]
    ended = "lost its connection" if status is None else f"ended with exit status {status}"
    return AgentFailed(
        host, f"the agent {ended} before its answer was complete; output:\n{output or '(none)'}"
    )


def _sudo_error(host: str, stderr: str) -> SudoRefused | None:
    """The refusal of sudo or sudo-rs, by their English messages (the command sets LC_ALL=C)."""
    needs = (
        r"a password is required|terminal is required|no tty present|interactive authentication is required"
    )
    wrong = r"incorrect (password|authentication)|(Sorry|failed), try again|no password was provided"
    if re.search(wrong, stderr):
        return PasswordRefused(
            host, "sudo does not accept the password", hint="Run again with the right password."
        )
    if re.search(needs, stderr):
        return SudoRefused(
            host,
            "sudo needs a password (or a terminal)",
            hint="Run again with -K to enter the password, or allow this user NOPASSWD in sudoers.",
        )
    if "must have a tty" in stderr:
        return SudoRefused(
            host,
            "sudo works only in a terminal (requiretty)",
            hint="Add `Defaults:USER !requiretty` to the host's sudoers, with the name of this login.",
        )
    if re.search(
        r"not in the sudoers file|not allowed to (execute '|run sudo)|may not run sudo|I can't do that",
        stderr,
    ):
        return SudoRefused(
            host,
            "sudo does not let this user become root",
            hint="Allow it in sudoers, or connect as another user.",
        )
    own = [
        line for line in stderr.splitlines() if line.startswith("sudo: ") and "unable to resolve" not in line
    ]
    return SudoRefused(host, own[-1]) if own else None
