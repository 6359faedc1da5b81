"""`gpunode explain`: every code of the catalogues is answered, with its source; a line that no table has is not."""

import ast
import functools
import random
import re
import string
import sys
from collections import Counter
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpunode import explain as explanations
from gpunode.agent.failures import HINTS
from gpunode.cli import app
from gpunode.cluster import obstacles
from gpunode.contract.xids import Verdict, verdict
from gpunode.deviceplugin import cuda, gpus
from gpunode.explain import (
    ACTIONS,
    OWN,
    Explanation,
    _bare,
    _behind_a_tag,
    _index,
    _lines,
    _own,
    _words,
    explain,
    explain_lines,
)
from gpunode.links.driver.link import repair
from gpunode.links.pod.pending import REASONS
from gpunode.packages import SYSTEMS
from gpunode.planning.tables import entry, table
from tests import cases, forks, jsonlines, tables
from tests.explained import judge

explain = functools.cache(explain)  # most lines are asked about by several tests
GPU = "0000:3b:00"
PARSER, COMPILER = (
    import_module(name)
    for name in (
        ("re._parser", "re._compiler") if sys.version_info >= (3, 11) else ("sre_parse", "sre_compile")
    )
)
FELL_OFF = f"[  12.3] NVRM: Xid (PCI:{GPU}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def rows(name: str) -> list[list[str]]:
    text = files("gpunode.explain").joinpath(f"{name}.tsv").read_text(encoding="utf-8")
    return [[*line.split("\t"), *[""] * 4] for line in text.splitlines() if not line.startswith("#")]


def meaning(text: str) -> Explanation:
    answer = explain(text)
    assert answer is not None, text
    return answer


def test_every_xid_has_an_answer_with_its_source():
    catalogue = rows("xid")
    assert len(catalogue) == 172
    for code, name, *_ in catalogue:
        line, short = meaning(f"NVRM: Xid (PCI:{GPU}): {code}, pid=1"), meaning(f"xid {code}")
        assert line.code == short.code == f"xid-{code}"
        assert line == meaning(f"Xid (PCI:{GPU}): {code}, pid=1"), "as events and alerts have it"
        assert name in line.what
        assert line.next
        assert "docs.nvidia.com/deploy/xid-errors" in line.source


def test_no_xid_is_answered_otherwise_than_the_plugin_acts():
    """A GPU that stays Healthy is not to be reset, and one that is Unhealthy has to be."""
    of = {
        Verdict.APPLICATION: {"nothing", "restart-program", "follow-other"},
        Verdict.RESET: {"reset-gpu", "follow-other", "contact-support", "update-driver", "nothing"},
        Verdict.REBOOT: {"reboot"},
        Verdict.HARDWARE: {"check-hardware"},
    }
    for code, *_ in rows("xid"):
        assert meaning(f"xid {code}").action in of[verdict(int(code))], code


def test_every_rule_of_nvlink_5_is_found_by_its_unit_and_bits():
    rules = rows("nvlink5")
    assert len(rules) == 94
    for code, units, *layouts, status, immediate, later, _ in [rule[:8] for rule in rules]:
        for unit in units.split("/"):
            for layout in layouts:
                bits = int(layout.replace("-", "0"), 2)
                answer = meaning(
                    f"NVRM: Xid (PCI:{GPU}): {code}, {unit} Fatal XC1 i0 Link 04 (0x{bits:08x} {status} 0x0)"
                )
                assert answer.action == ACTIONS[immediate], (code, unit, status)
                assert later in table("gpunode.explain", "actions.yaml")["later"] or later == "IGNORE"


def test_bits_of_no_rule_are_not_taken_for_those_of_another():
    answer = meaning(
        f"NVRM: Xid (PCI:{GPU}): 145, RLW_REMAP Fatal XC1 i0 Link 04 (0x00000082 0x00f00000 0x0)"
    )
    assert answer.action == "follow-other"


def test_every_sxid_has_an_answer_with_its_source():
    catalogue = rows("sxid")
    assert len(catalogue) == 93
    for code, name, severity, recovery, *_ in catalogue:
        answer = meaning(f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {code}, Link 1 (First)")
        assert name in answer.what
        assert answer.action == (recovery or "nothing" if severity == "non-fatal" else "reset-fabric")
        assert answer.source
        assert meaning(f"sxid {code}") == meaning(code) == answer
        assert name in meaning(f"detected NVSwitch fatal error {code} on fid 0 on NVSwitch pci bus id 0").what


def test_the_line_decides_where_the_catalogue_leaves_it_open():
    line = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 22012, {}, Link 1"
    assert meaning(line.format("Non-fatal")).action == "check-hardware"
    assert meaning(line.format("Fatal")).action == "reset-fabric"
    assert meaning(line.format("Non-fatal").replace("22012", "10001")).action == "nothing"


def test_an_sxid_that_is_not_fatal_has_the_recovery_of_the_guide():
    """12028 stalls the GPU's NVLinks until a restart."""
    assert meaning("sxid 12028").action == "reset-fabric"


@pytest.mark.parametrize(
    ("recovery", "action"),
    [
        ("0x0 (None)", "nothing"),
        ("0x1 (GPU Reset Required)", "reset-gpu"),
        ("0x2 (Node Reboot Required)", "reboot"),
    ],
)
def test_xid_154_is_answered_by_the_action_that_it_names(recovery: str, action: str):
    text = f"NVRM: Xid (PCI:{GPU}): 154, GPU recovery action changed from 0x0 (None) to {recovery}"
    assert meaning(text).action == action


def test_a_command_names_the_gpu_of_the_line():
    assert meaning(f"NVRM: Xid (PCI:{GPU}): 119, pid=1").command == f"nvidia-smi --gpu-reset -i {GPU}.0"
    assert meaning("NVRM: Xid (0000:03:00): 62, 1234").command == "nvidia-smi --gpu-reset -i 0000:03:00.0"
    assert meaning(f"NVRM: Xid (PCI:{GPU} GPU-I:05): 95, pid=1").command.endswith(f"{GPU}.0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all is well",
        "xid 0",
        "xid 173",
        "sxid 1",
        "LOG: xid 79 was committed",
        "12 monkeys",
        "999999",
        "Xid",
        "cuX" + "err" * 7000,  # these two took a minute
        "cuda " * 12_000,
    ],
)
def test_what_no_table_has_is_not_guessed_at(text: str):
    assert explain(text) is None


@tables.rows("explained-threads")
def test_lines_of_public_threads_are_answered_by_their_outcome(name: str, right: int, wrong: int):
    """Those that are wrong have had other causes in other threads. Lines that differ in numbers only are in one of the files. Provoked ones have a certain cause."""
    counts = Counter(judge(row, explain(row["line"])) for row in cases.read(f"explain/{name}.yaml"))
    assert counts["right"] >= right
    assert counts["wrong"] <= wrong


@tables.rows("log-prefixes")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("No devices were found", "gpu-not-listed"),
        ("error: misaligned address", "kernel-failed"),
        ("Tried to allocate 216.00 MiB (GPU 0; 7.92 GiB total capacity)", "out-of-memory"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1", "xid-79"),
        ("nvidia-container-cli: device error: 4: unknown device", "device-unknown"),
    ],
)
def test_what_a_logger_writes_around_a_line_hides_no_answer(before: str, after: str, line: str, code: str):
    text = before + line + after
    assert [answer.code for _, answer in explain_lines(text)] == [code]
    assert [answer.code for _, answer in explain_lines(f"{text}\n" * 2)] == [code]


def test_a_log_of_windows_is_read():
    """Its bytes are UTF-16, read as UTF-8."""
    log = f"{FELL_OFF}\n{FELL_OFF}".encode("utf-16").decode(errors="replace")
    assert [answer.code for _, answer in explain_lines(log)] == ["xid-79"]


@pytest.mark.parametrize(
    "line", ['{"log": 9007199254740993}', '{"MESSAGE": null}', '{"MESSAGE": [-1]}', "{}"]
)
def test_a_record_without_a_text_is_a_line_like_others(line: str):
    """A number is no length: memory for so many bytes was asked for."""
    assert not explain(line)


def test_an_index_passes_by_no_row_that_matches():
    """Each pattern has a text that it needs: what needs none is tried for each line."""
    assert not _index().always
    for row in cases.cases("explain"):
        by_index = _behind_a_tag(_bare(row["line"]), _index())
        assert by_index == explain(row["line"]), row["line"]


def test_a_long_log_tries_few_rows(monkeypatch):
    """200 kB of noise with one line of the kernel in it."""
    tried: list[str] = []
    monkeypatch.setattr(
        explanations, "_pattern", lambda match: tried.append(match) or re.compile(match, re.I)
    )
    noise = random.Random(1).randbytes(200_000).decode("latin-1").splitlines()
    assert len(noise) > 1000
    text = "\n".join([*noise, FELL_OFF, *noise])
    assert [answer.code for _, answer in explain_lines(text)] == ["xid-79"]
    assert len(tried) < len(noise) / 10


@pytest.mark.parametrize(
    "line", ["79", "failed", "\u0663", "{" * 100_000, '{"a":' * 100_000, '{"log": [256]}', "[" * 5000]
)
def test_a_number_or_a_word_alone_is_a_code_for_a_user_and_nothing_in_a_log(line: str):
    assert explain_lines(f"{line}\n{line}") == []


def test_a_family_of_lines_has_its_answer_and_an_unknown_cause_is_narrowed_down():
    for row in cases.read("explain/families.yaml"):
        answer = meaning(row["line"])
        assert (answer.code, answer.fault) == (row["code"], row.get("fault", "unknown")), row["line"]
        assert answer.command or "fault" in row, row["code"]


def test_every_row_names_an_action_and_its_source():
    known: Any = table("gpunode.explain", "lines.yaml")
    assert len({row["code"] for row in known}) == len(known)
    for row in known:
        assert row["action"] in table("gpunode.explain", "actions.yaml")
        assert row["source"]
        assert meaning(row["code"]).code == row["code"]
        if second := meaning(row["code"]).alternative:
            assert second.condition
            assert second.action in table("gpunode.explain", "actions.yaml")
            assert second.next
            assert (second.fault, second.action) != (row["fault"], row["action"])


def test_a_provision_that_is_to_bring_another_driver_is_told_its_branch_first():
    """`driver: auto` keeps an installed branch: without that the command changes nothing."""
    bringing = [
        answer
        for row in table("gpunode.explain", "lines.yaml")
        if (answer := meaning(row["code"])).action == "update-driver" and answer.command
    ]
    assert {"image-needs-driver", "driver-too-old"} < {answer.code for answer in bringing}
    for answer in (*bringing, meaning("xid 78")):
        assert 'To update, name a newer branch in the inventory, such as `driver: "595"`' in answer.next


def test_an_error_of_cuda_is_known_by_its_names_its_text_and_its_number():
    known = {row["code"]: row for row in table("gpunode.explain", "lines.yaml")}
    catalogue = rows("cuda")
    assert len(catalogue) == 134
    for number, driver, runtime, text, kind, *_ in catalogue:
        forms = (f"CUDA error {number}", f"CUDA error: {text}", driver, runtime)
        codes = {getattr(explain(form), "code", "") for form in forms}
        if kind:
            assert kind in known, number
            assert kind in codes, number
        # A pattern may know one of the forms better; but what has several causes is not made to have one.
        assert kind or codes <= {"", "cuda-start-unknown", "cuda-failed"}, number


@tables.rows("cuda-texts")
def test_a_text_of_cuda_is_no_other_programs_text(text: str, code: str | None):
    assert getattr(explain(text), "code", None) == code


@tables.rows("lines-of-other-programs")
def test_a_line_is_explained_where_it_names_a_part_of_a_gpu(text: str, code: str | None):
    """Those of dkms and of PCI devices in general have rows that say so."""
    assert getattr(explain(text), "code", None) == code


def test_an_entry_is_parsed_alone_as_in_its_table():
    rows = [(row, entry("gpunode.explain", "lines.yaml", row["code"])) for row in _lines()]
    assert all(row == alone for row, alone in rows)


def test_a_word_that_is_no_code_reads_no_table_again(monkeypatch):
    explain("no-code")
    monkeypatch.delattr("gpunode.planning.tables._read")
    assert explain("another-word") is None


def test_no_pattern_repeats_a_character_in_two_ways():
    """Two unbounded repeats side by side that take the same character, as in `X\\S*.*Y`, take the cube of a line."""
    for row in _lines():
        assert not _is_ambiguous(row.get("match", "")), row["code"]
    assert all(_is_ambiguous(text) for text in (r"X\S*.*Y", r"(a|b\w*)\b.*Y", r"(\S*)*", r"[^ ]*c?\w+"))
    assert not any(_is_ambiguous(text) for text in (r"^(?=.*a).*b", r"\d+ .*b", r"\w*: \S*", r"\w{0,9}.*"))


def _is_ambiguous(pattern: str) -> bool:
    twice: list[str] = []
    _last_repeats(PARSER.parse(pattern, re.IGNORECASE), [], twice)
    return bool(twice)


def _last_repeats(sequence: Any, last: list[set[str]], twice: list[str]) -> list[set[str]]:
    """The characters of each unbounded repeat that may end where the sequence ends; `last`: where it begins."""
    for operation, value in sequence:
        kind = str(operation)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, body = value
            before = last if least == 0 else []
            if most != PARSER.MAXREPEAT:
                last = _last_repeats(body, last, twice) + before
            elif len(body) == 1 and str(body[0][0]) in ("ANY", "LITERAL", "NOT_LITERAL", "IN"):
                single = COMPILER.compile(body, re.IGNORECASE)
                taken = {character for character in string.printable if single.fullmatch(character)}
                twice += ["".join(taken & other) for other in last if taken & other]
                last = [taken, *before]
            else:
                last = _last_repeats(body, _last_repeats(body, last, twice), twice) + before
        elif kind == "SUBPATTERN":
            last = _last_repeats(value[3], last, twice)
        elif kind == "BRANCH":
            last = [repeat for branch in value[1] for repeat in _last_repeats(branch, last, twice)]
        elif kind in ("ASSERT", "ASSERT_NOT"):
            _last_repeats(value[1], [], twice)
        elif kind != "AT" or str(value) == "AT_BEGINNING":
            last = []
    return last


def test_a_general_answer_names_what_is_nvidias_and_proves_no_cause():
    """Without NVIDIA's words the same line has none; and each general row has a line of its own."""
    answers = {
        row["line"]: answer
        for row in cases.cases("explain")
        if (answer := explain(row["line"])) and answer.general and answer.fault == "unknown"
    }
    known: Any = table("gpunode.explain", "lines.yaml")
    general = {row["code"] for row in known if row.get("failure")}
    assert {answer.code for answer in answers.values()} == general
    for line, answer in answers.items():
        assert answer.next.startswith("This line does not prove one cause.")
        bare = explain(_words()["nvidia"].sub("it", line))
        assert bare is None or not bare.general, line


def test_each_of_gpunodes_own_codes_is_explained_as_itself():
    """Numbers are those of Xids."""
    codes = [code for code in _own() if OWN.fullmatch(code) and not code.isdecimal()]
    assert len(codes) > 600
    assert {code: meaning(code).code for code in codes if meaning(code).code != code} == {}


def test_what_the_plugin_reports_is_explained():
    """By the codes of NVML's errors and by CUDA's numbers. 999 has many causes: the kernel log tells."""
    assert [why.code for why in gpus._REASONS.values() if explain(why.code) is None] == []
    several = [number for number in cuda._MEANING if meaning(f"CUDA error {number}").fault == "unknown"]
    assert several == [999]


def written_codes() -> dict[str, str]:
    """The codes that the source gives to problems, verdicts, reasons and the like → a place."""
    codes: dict[str, str] = {}
    for path in sorted(Path("gpunode").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\bcode=|\b(Problem|Reason|Left|Deviation|broken)\(", text):
            continue
        tree = ast.parse(text)
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            values = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
            values += call.args[:1] if name in ("Problem", "Reason", "Left", "Deviation") else []
            values += call.args[4:5] if name == "broken" else []
            branches = [
                branch
                for value in values
                for branch in ([value.body, value.orelse] if isinstance(value, ast.IfExp) else [value])
            ]
            for branch in branches:
                value = constants.get(branch.id, branch) if isinstance(branch, ast.Name) else branch
                if isinstance(value, ast.Constant) and re.fullmatch(r"[a-z0-9-]+", str(value.value)):
                    codes[str(value.value)] = f"{path}:{call.lineno}"
    return codes


def test_every_code_of_json_lines_is_explained():
    """Those in the source, of failed changes, of refused pods and of a Pending pod's reasons; and of an acceptance."""
    written = written_codes()
    assert len(written) > 100
    rules = (*obstacles.rules("admission"), *obstacles.rules("scheduling"))
    systems = [code for system in SYSTEMS.values() for code in system.hints]
    known = {*HINTS, *systems, *(rule.code for rule in rules), *(code for _, code, _ in REASONS if code)}
    known |= {"pcie-width", "memory-slow", "gpus-missing"}
    assert {code: written.get(code, "") for code in {*written, *known} if explain(code) is None} == {}
    assert meaning("pcie-width").what.startswith("fewer lanes")
    assert run_explain("pcie-width") == 0


def run_explain(text: str) -> int:
    return CliRunner().invoke(app, ["explain", text]).exit_code


def test_lines_of_stdin_are_explained_once_each(tmp_path):
    log = f"all is well\n{FELL_OFF}\n{FELL_OFF}\n"
    with (tmp_path / "log").open("w+") as stdin:
        stdin.write(log)
        stdin.seek(0)
        words = [sys.executable, "-m", "gpunode", "explain", "-", "--json"]
        done = forks.run(words, stdin=stdin, capture_output=True, text=True)
    first, summary = jsonlines.parse(done.stdout)
    assert done.returncode == 0
    assert (first["code"], first["fault"], first["action"]) == ("xid-79", "hardware", "reboot")
    assert first["line"] == FELL_OFF
    assert (summary["lines"], summary["explained"]) == (3, 1)


@tables.rows("explained-together")
def test_the_most_specific_line_is_first_and_one_that_adds_nothing_is_left_out(text: str, codes: str):
    assert " ".join(answer.code for _, answer in explain_lines(text)) == codes


def test_a_line_of_two_causes_names_both_and_what_tells_them_apart():
    done = CliRunner().invoke(app, ["explain", "--json", "unknown runtime specified nvidia"])
    line = jsonlines.parse(done.stdout)[0]
    assert (line["fault"], line["action"]) == ("configuration", "configure")
    assert (line["or_fault"], line["or_action"]) == ("system", "restart-service")
    assert line["or_if"] == "docker's configuration names the runtime already"
    single = jsonlines.parse(CliRunner().invoke(app, ["explain", "--json", "xid 63"]).stdout)[0]
    assert single["or_if"] == single["or_fault"] == single["or_action"] == single["or_next"] == ""


def test_an_xid_that_comes_back_has_the_second_cause_of_its_line():
    second = meaning(FELL_OFF).alternative
    assert second is not None
    assert second == meaning("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.").alternative
    assert (second.condition, second.action) == ("the error returns after the reboot", "check-hardware")
    assert meaning(FELL_OFF).next == "Drain the node, then reboot the host."  # the rest is the second's


def test_a_gpu_that_the_plugin_took_away_for_an_xid_comes_back_with_its_pod():
    answer = meaning("XidCriticalError: Xid=69 on Device=GPU-1, the device will go unhealthy.")
    assert (answer.code, answer.fault) == ("xid-69", "application")
    assert "Then restart the plugin's pod" in answer.next
    own = meaning("GPU 0 (GPU-1) is Unhealthy: Xid 69")  # gpunode's plugin takes it back on its own
    assert "restart the plugin's pod" not in own.next


@pytest.mark.parametrize(
    ("text", "last"), [("xid 79", ""), ("xid 79\nxid 48", " 2 errors explained in 2 lines.\n")]
)
def test_the_explanation_of_one_line_is_not_counted(text: str, last: str):
    assert CliRunner().invoke(app, ["explain", text]).stderr == last


def test_an_unknown_line_ends_with_its_own_exit_code():
    done = CliRunner().invoke(app, ["explain", "all", "is", "well"])
    assert done.exit_code == 7
    assert "gpunode does not know this line" in done.stderr


@pytest.mark.parametrize(
    ("text", "name"),
    [("Xid 9999", "Xid 9999"), ("sxid 1", "SXid 1"), ("NVRM: Xid (PCI:0000:3b:00): 999, pid=1", "Xid 999")],
)
def test_a_number_that_nvidia_does_not_list_is_named(text: str, name: str):
    done = CliRunner().invoke(app, ["explain", text])
    assert (done.exit_code, f" {name} is not in gpunode's copy" in done.stderr) == (7, True)
    assert done.stdout == ""


def test_a_line_whose_cause_is_unknown_says_how_to_find_it_and_ends_as_an_unknown_one():
    done = CliRunner().invoke(
        app, ["explain", "--json", "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x56:884)"]
    )
    line, summary = jsonlines.parse(done.stdout)
    assert (line["code"], line["fault"], line["action"]) == ("gpu-not-started", "unknown", "follow-other")
    assert line["command"] == ""  # the line is of the kernel log
    assert (done.exit_code, summary["explained"]) == (7, 0)


def test_a_program_of_the_toolkit_that_is_missing_is_no_missing_configuration():
    answer = meaning('exec: "nvidia-container-runtime": executable file not found in $PATH: unknown')
    assert answer.code == "toolkit-program-missing"
    assert answer.next.startswith("Install the container toolkit, or remove the runtime")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("call to cuCtxCreate returned error 214", "ecc-uncorrectable"),
        ("Unable to read CUDA capable devices. Return status: 35", "driver-too-old"),
        ("cudaDeviceGetAttribute failed, deviceId=1, err=101", "no-device"),
        ("CUDA Version: 12", None),
    ],
)
def test_a_number_of_cuda_is_read_where_the_line_reports_a_failure(text: str, code: str | None):
    assert getattr(explain(text), "code", None) == code


def test_the_fix_of_a_lost_gpu_has_the_commands():
    drain = "`kubectl drain n1 --ignore-daemonsets`"
    first, *more = repair("n1").splitlines()
    assert first == f"{drain}; on the host `sudo systemctl reboot`; then `kubectl uncordon n1`"
    assert "reboot" not in "".join(more)  # it is told once
    assert re.findall(r"drain|reboot|uncordon", meaning("xid 79").command) == ["drain", "reboot", "uncordon"]
