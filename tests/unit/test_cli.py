"""The command line as a process: how it ends."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gpunode import cli
from gpunode.cli import app
from gpunode.errors import KubeconfigUnusable, UsageError
from tests import forks, tables

INTERRUPTED = """
import os, signal, sys, time
from gpunode import cli
from gpunode.engine import fleet
from gpunode.model import Host, Ssh

number = getattr(signal, sys.argv[1])  # which a background job, or nohup, may have been started to ignore
signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

def story(host, emit):
    os.kill(os.getpid(), number)
    time.sleep(600)

cli.app.registered_groups.clear()  # one may have this name

@cli.app.command(sys.argv[2])
def hang():
    try:
        list(fleet.run([Host("a", Ssh("a"))], story, forks=8))
    finally:
        os.kill(os.getpid(), 0 if number == signal.SIGINT else number)  # once more, as it cleans up
        print("cleaned up", flush=True)

sys.argv = ["gpunode", sys.argv[2]]
cli.main()
"""


def test_every_mistake_of_an_inventory_begins_with_its_place(tmp_path):
    """As a compiler's do, the first like the others: editors jump to it."""
    (tmp_path / "inventory.yaml").write_text("groups: {a: {hosts: [x y, z z]}}\n")
    words = [sys.executable, "-m", "gpunode", "plan"]
    done = forks.run(words, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 2
    *mistakes, last = done.stderr.splitlines()
    assert [line.split(": ")[0] for line in mistakes] == ["inventory.yaml:1:22", "inventory.yaml:1:27"]
    assert last == "2 mistakes, nothing was contacted."


@tables.rows("mistakes-of-words", message="", hint="")
def test_a_mistake_is_answered_with_what_to_write(words: str, message: str, hint: str):
    """By the end of the message, or by the hint."""
    error = CliRunner().invoke(app, words.replace("NINES", "9" * 5000).split()).exception
    assert isinstance(error, UsageError)
    assert error.message.endswith(message)
    assert hint in error.hint


def test_a_kubeconfig_that_is_named_and_not_there_is_told_before_mistakes_of_the_inventory(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yaml").write_text("groups: 1\n")
    error = CliRunner().invoke(app, ["status", "--kubeconfig", "nosuch"]).exception
    assert isinstance(error, KubeconfigUnusable)
    assert "nosuch" in error.message


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("accept --level fast", "invalid value for '--level': 'fast' is not one of 'quick', 'standard'"),
        ("status -n Bad_Name", "at most 63 of a-z, 0-9 and -"),
        ("run manifest vectoradd -n Bad_Name", "at most 63 of a-z, 0-9 and -"),
        ("init --dry-run", "No such option: --dry-run"),
    ],
)
def test_other_slips_name_the_commands_help(words: str, told: str):
    """In one style, without words of a library."""
    error = CliRunner().invoke(app, words.split()).exception
    assert isinstance(error, UsageError)
    assert told.lower() in error.message.lower()
    assert re.fullmatch(r"See `gpunode[a-z ]* --help`\.", error.hint)


@pytest.mark.parametrize(
    ("words", "needs", "example"),
    [
        ("undo", "undo needs RUN: the run's id, a prefix of it, or `last`", "gpunode undo last"),
        ("why pod", "why pod needs NAMESPACE/NAME: the pod", "gpunode why pod ml/train-7"),
        ("forget", "forget needs HOST...: hosts or groups", "gpunode forget gpu-07"),
    ],
)
@pytest.mark.parametrize("program", ["gpunode", "gn"])
def test_an_argument_that_is_missing_is_named_with_an_example(
    program: str, words: str, needs: str, example: str
):
    """Whatever the program's name is, as that of a link to it."""
    error = CliRunner().invoke(app, words.split(), prog_name=program).exception
    assert isinstance(error, UsageError)
    assert error.message.startswith(needs)
    assert error.hint.startswith(f"For example `{example}")
    assert error.exit_code == 2


@pytest.mark.parametrize(
    "words", ["LONG", "plan --LONG", "plan --forks LONG", "plan --limit LONG i.yaml", "resume LONG"]
)
def test_a_word_of_thousands_of_characters_is_not_repeated_whole(tmp_path, words: str):
    (tmp_path / "i.yaml").write_text("groups: {g: {hosts: [a]}}\n")
    command = [sys.executable, "-m", "gpunode", *words.replace("LONG", "x" * 5000).split()]
    done = forks.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "x" * 50 in done.stderr
    assert len(done.stderr) < 2500


def test_a_host_has_a_name_that_a_host_can_have(tmp_path):
    (tmp_path / "i.yaml").write_text(f"groups: {{g: {{hosts: [{'x' * 254}]}}}}\n")
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "i.yaml")])
    assert "has 254 characters; 253 is the maximum" in str(done.exception)


@pytest.mark.parametrize(
    ("name", "command", "changes", "pods"),
    [
        ("SIGINT", "provision", True, True),
        ("SIGTERM", "undo", True, True),
        ("SIGHUP", "run", False, True),
        ("SIGHUP", "explain", False, False),
    ],
)
def test_an_interrupt_ends_the_program_at_once(name: str, command: str, changes: bool, pods: bool):
    """What is to be cleaned up is, whoever ends it; hosts at work go on by themselves, and nobody has to wait for them. A command that
    changes none, or runs no pods, does not say so."""
    words = [sys.executable, "-c", INTERRUPTED, name, command]
    done = forks.run(words, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (130, "cleaned up\n")
    assert ("continues on its host" in done.stderr) is changes
    assert ("test pods are removed" in done.stderr) is pods


LOST = """
import os, signal, threading
from gpunode import cli
from gpunode.errors import UsageError

def end():
    os.kill(os.getpid(), signal.SIGTERM)

class Finalized:
    def __del__(self):
        end()

class Told(UsageError):
    def __str__(self):
        end()

@cli.app.command("finalizer")
def finalizer():
    Finalized()
    threading.Event().wait(20)
    print("went on")

@cli.app.command("message")
def message():
    raise Told("")

cli.sys.argv = ["gpunode", cli.sys.argv[1]]
cli.main()
"""


@pytest.mark.parametrize("place", ["finalizer", "message"])
def test_an_interrupt_ends_the_program_wherever_it_is_raised(place: str):
    """Python drops an exception in a finalizer; and a message is made where no command runs."""
    done = forks.run([sys.executable, "-c", LOST, place], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "gpunode: interrupted.\n")


INSPECT = ("-c", "from gpunode.__main__ import kubectl_inspect; kubectl_inspect()")


@pytest.mark.parametrize("program", [("-m", "gpunode"), INSPECT], ids=["gpunode", "kubectl inspect gpunode"])
def test_an_interrupt_while_the_program_loads_is_no_traceback(program: tuple[str, ...], tmp_path):
    """Its modules take some tenths of a second."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, *program, "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell's job in the background ignores it
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_signal_that_is_ignored_stays_so():
    """As under nohup: the terminal that goes away ends nothing."""
    program = (
        "import os, signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nfrom gpunode import cli\n"
        "@cli.app.command('hang')\ndef hang():\n    os.kill(os.getpid(), signal.SIGHUP)\n    print('goes on')\n"
        "import sys\nsys.argv = ['gpunode', 'hang']\ncli.main()\n"
    )
    done = forks.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "goes on\n")


QUESTION = """
import sys
from gpunode import cli
from gpunode.engine.reporter import confirm
from gpunode.report import make

class Terminal:
    def isatty(self):
        return True
    def readline(self):
        raise KeyboardInterrupt

@cli.app.command("ask")
def ask():
    sys.stdin = Terminal()
    confirm(make(json=False, quiet=True), "Apply?", yes=False)

sys.argv = ["gpunode", "ask"]
cli.main()
"""


def test_a_bug_ends_with_where_to_report_it():
    program = (
        "import sys\nfrom gpunode import cli\n@cli.app.command('bug')\ndef bug():\n    raise KeyError('gone')\n"
        "sys.argv = ['gpunode', 'bug']\ncli.main()\n"
    )
    done = forks.run([sys.executable, "-c", program], capture_output=True, text=True)
    *_, error, line, where = done.stderr.splitlines()
    assert (done.returncode, error, line) == (1, "KeyError: 'gone'", "gpunode: this is a bug in gpunode.")
    assert "`gpunode support-bundle`" in where
    assert "`gpunode help troubleshooting#when-you-ask-for-help`" in where


def test_an_interrupt_at_a_question_is_one():
    """Not a no, which is 4."""
    done = forks.run([sys.executable, "-c", QUESTION], capture_output=True, text=True)

    assert done.returncode == 130
    assert "interrupted" in done.stderr


@pytest.mark.parametrize(
    ("words", "streams"),  # an error of gpunode's, and one of its options
    [("init", "<&-"), ("init", ">&-"), ("init", "<&- >&- 2>&-"), ("plan --nosuch", "<&- >&- 2>&-")],
)
def test_closed_streams_leave_the_exit_code_as_it_is(words: str, streams: str, tmp_path):
    """Python finds them closed as it starts."""
    program = f"{sys.executable} -c 'from gpunode.cli import main; main()' {words} {streams}"
    done = subprocess.run(program, check=False, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["init", "plan --nosuch"])
@pytest.mark.parametrize("output", [subprocess.DEVNULL, None], ids=["messages", "all"])
def test_full_streams_leave_the_exit_code_as_it_is(words: str, output: int | None, tmp_path):
    program = "from gpunode.cli import main; main()"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", program, *words.split()]
        done = forks.run(command, cwd=tmp_path, stdout=full if output is None else output, stderr=full)
    assert done.returncode == 2


LONG = "x" * 300
REPORT = """
import sys
from gpunode import cli
from gpunode.report import make

@cli.app.command("report")
def report():
    make(json=False, quiet=True).rows("label", ("node", "result"), [("gpu-01", "✓"), ("gpu-02", "✗"), ("gpu-03", "ö")])

sys.argv = ["gpunode", "report"]
cli.main()
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_report_that_cannot_be_written_is_one_line():
    """A full disk is no bug of gpunode's, and needs no traceback."""
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-c", REPORT]
        done = forks.run(words, stdout=full, stderr=subprocess.PIPE, text=True)

    assert done.returncode == 1
    assert done.stderr == "gpunode: cannot write the report: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["keys", "debian12", "--to", LONG], {}),
        (["plugin", "image", "--base", LONG], {}),
        (["plan", "--html", LONG], {}),
        (["init", LONG, "--hosts", "a"], {}),
        (["status", "--kubeconfig", LONG], {}),
        (["plan"], {"GPUNODE_INVENTORY": LONG}),
        (["resume"], {"XDG_STATE_HOME": LONG}),
    ],
    ids=lambda each: " ".join(each)[:12],
)
def test_a_path_that_no_file_can_have_is_named(words: list[str], environment: dict[str, str], tmp_path):
    """Wherever a user names it."""
    (tmp_path / "inventory.yaml").write_text("groups: {g: {hosts: [a]}}\n")
    line = [sys.executable, "-m", "gpunode", *words]
    done = forks.run(line, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **environment})
    assert (done.returncode, done.stdout) == (2, "")
    assert LONG[:100] in done.stderr
    assert "ile name too long" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_encoding_without_a_sign_loses_only_the_sign():
    ascii = "import sys; sys.stdout.reconfigure(encoding='ascii')"
    done = forks.run([sys.executable, "-c", ascii + REPORT], capture_output=True, text=True, check=True)

    assert done.stderr == ""
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["gpu-01", "+"],
        ["gpu-02", "x"],
        ["gpu-03", "?"],
    ]


@pytest.mark.parametrize("json", [False, True])
def test_a_reader_that_goes_away_ends_the_program_quietly(json: bool):
    """As `| head -1` does; with the exit code of any program that SIGPIPE ends, and without a word."""
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-c", REPORT.replace("json=False", f"json={json}")]
    done = forks.run(words, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)

    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("gpunode plan --limit g", ["gpu-1", "gpu-2", "gold"]),
        ("gpunode plan --limit gpu-1,go", ["gpu-1,gold"]),
        ("gpunode plan other.yaml --exclude ", ["all", "x"]),
        ("gpunode plan gone.yaml --limit g", []),
        ("gpunode demo --break run", ["runtime"]),
        ("gpunode demo break daemon", ["daemon.json"]),
    ],
)
def test_the_shell_completes_hosts_and_groups(tmp_path, words: str, completions: list[str]):
    """Of the inventory on the line, else of the usual one; also after a comma. A file that is wrong completes nothing."""
    (tmp_path / "inventory.yaml").write_text("groups: {gold: {hosts: ['gpu-[1:2]']}}\n")
    (tmp_path / "other.yaml").write_text("groups: {all: {hosts: [x]}}\n")
    environment = {**os.environ, "_GPUNODE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}
    program = "import sys; sys.argv = ['gpunode']; from gpunode.cli import app; app(prog_name='gpunode')"
    done = forks.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    printed = re.findall(r'"([^"]+)"', done.stdout)
    assert sorted(printed) == sorted(completions), done.stdout + done.stderr


@pytest.mark.parametrize(("word", "kept"), [("cordon-gpu", ["cordon-gpu"]), ("plugin", ["plugin"])])
def test_only_the_named_command_is_made(monkeypatch, word: str, kept: list[str]):
    """A mistake, or no word, has all of them: it names those that are near. `help` has the help of each."""
    for name in ("registered_commands", "registered_groups"):
        monkeypatch.setattr(app, name, list(getattr(app, name)))
    for other in ("cordon", "--help", "help"):
        cli._load_only([other])
        assert len(get_command(app).commands) > 20  # type: ignore[attr-defined]
    cli._load_only([word])
    assert list(get_command(app).commands) == kept  # type: ignore[attr-defined]
