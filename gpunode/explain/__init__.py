"""What an error means: what happened, whose fault it is, what to do next. Reads tables; what no table has is not known.

A general answer knows the program that failed and not the cause, and says so. `general.yaml`: which lines may have one.

`xid.tsv`, `nvlink5.tsv` and `sxid.tsv` hold the driver's codes, `lines.yaml` the words of other programs, `codes.yaml` gpunode's
own codes, `actions.yaml` what to do about them. The short names and what the device plugin makes of an Xid are in `contract/xids`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias, cast

from gpunode import wording
from gpunode.contract.xids import NAMES, Verdict, verdict
from gpunode.explain.index import Index
from gpunode.planning.tables import entry, table

# unknown: the line has several causes, and does not tell which. "": of a code of gpunode's own.
Fault: TypeAlias = Literal["hardware", "driver", "application", "system", "configuration", "unknown", ""]

XID_SOURCE = "NVIDIA, Xid errors (docs.nvidia.com/deploy/xid-errors)"
SXID_SOURCE = "NVIDIA, Fabric Manager user guide, appendix D"

# The kernel's lines: `NVRM: Xid (PCI:0000:3b:00): 79, pid=...`; before R319 without `PCI:`. Events and alerts leave out `NVRM:`.
XID = re.compile(r"\bXid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)[^)]*\): (?P<code>\d+)(?P<rest>.*)")
SXID = re.compile(r"SXid \([^)]*\): (?P<code>\d+)(?:, (?P<severity>Fatal|Non-fatal))?")
# The fabric manager's log: `detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id ...`.
NVSWITCH = re.compile(r"NVSwitch (?P<severity>fatal|non-fatal) error (?P<code>\d{5})")
# Other programs' lines name an Xid after this word; PostgreSQL has xids, too.
NAMED = re.compile(r"\b(?P<kind>s?xid)s?(?: errors?| events?)?[\s:=#(-]{0,3}(?P<code>\d+)\b", re.IGNORECASE)
AGAIN = "Then restart the plugin's pod on that node: NVIDIA's plugin takes no unhealthy GPU back."
TAKEN = re.compile(r"marking device as unhealthy|XidCriticalError.*unhealthy", re.I)  # by NVIDIA's plugin
OF_A_GPU = re.compile(r"nvidia|nvrm|nvswitch|nvml|gpu|cuda|dcgm", re.IGNORECASE)
OF_CUDA = re.compile(
    r"^(?!.*\bhip|.*rocm).*?(?:nvidia|gpu|cuda|\bcu[A-Z]|\.cuh?\b|nccl|torch|thrust|cupy|numba|jax|xla|tensor|triton|ggml|llama|cudnn|cublas|ptx|onnx|device vector|cutlass|no kernel image is available)",
    re.IGNORECASE,
)
BEFORE_A_TEXT = re.compile(
    r"(?:[\W\d]|\b(?:\w*[Ee]rror|\w*Exception|in \w+_\w+|what|fatal|failed|[A-Z]{4,}|rank)\b)*"
)  # no other program's name
# NVLink 5: `149, NETIR_LINK_EVT  Fatal   XC1 i0 Link 04 (0x004505c6 0x00000000 ...)`: unit, intrinfo, error status.
NVLINK5 = re.compile(r", (?P<unit>[A-Z0-9_]+)\b.*\(0x(?P<info>[0-9a-f]{8}) 0x(?P<status>[0-9a-f]{8})\b")
CUDA = re.compile(
    r"\b(?:nv)?(?:cuda|cuInit|cuCtx|cuDevice)(?:[\w() .]*?(?:error|failure|code|returned|status)|.*\berr(?:or)?)?[\s=(:]{1,3}(?P<code>\d+)\b",
    re.IGNORECASE,
)
RETURNED = re.compile(
    r"(?:returned?|error|status)(?: code| value)?\W{1,3}(?P<code>\d{1,3})\W{1,3}(?:from|in|by)\W{1,3}cuda[A-Z]",
    re.IGNORECASE,
)
CUDA_NAME = re.compile(r"(?:CUDA_ERROR_|cudaError_?)(?P<name>[A-Za-z]\w*)")
FAILED = re.compile(r"err|failure|returned|status", re.IGNORECASE)
ECHO = re.compile(r"\s*(?:File \".*\", line \d+|raise [\w.]+\()")  # a traceback's copy of the source
OF_SMI = "API mismatch: the client 'nvidia-smi'"
# Colours (ECMA-48, control sequences); half of a text in UTF-16.
UNSEEN = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\0")
# Before a line: the kernel's time, or a date; with its stream in the log of a container (CRI).
TIMES = re.compile(r"(?:\[ *\d+\.\d+\] |\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* (?:std(?:out|err) [FP] )?)+")
# What names the writer: `kubectl logs --prefix`, `docker compose logs`, klog, syslog.
TAG = re.compile(
    r"\[[\w./-]+\] |[\w.-]+ *\| |[IWEF]\d{4} [\d:.]+ +\d+ \S+\] |(?:<\d+>)?(?:[A-Z][a-z]{2} +\d+ [\d:]{8} )?(?:\S+ )?[\w./@-]+\[\d+\]: "
)
FEW = 100  # lines that are read before an index pays
LONGEST = 4000  # characters of a line: patterns take the square of it at worst
NEVER = r"(?!)no line"  # of a row for numbers alone
GENERAL = "This line does not prove one cause."
OWN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
PAGES = ("reference/codes", "json", "accept", "failures")  # with tables of codes
ROW = re.compile(r"^\| ((?:`[^`|]+`(?:, )?)+) \| (.*) \|$", re.MULTILINE)
RECOVERY = re.compile(r"recovery action changed .* to 0x[0-9a-f]+ \((?P<action>[^)]+)\)")  # Xid 154

# By the catalogue's immediate action. "": it names none.
ACTIONS = {
    "IGNORE": "nothing",
    "RESTART_APP": "restart-program",
    "RESET_GPU": "reset-gpu",
    "RESTART_BM": "reboot",
    "RESTART_VM": "reboot",
    "CHECK_MECHANICALS": "check-hardware",
    "CHECK_UVM": "follow-other",
    "CONTACT_SUPPORT": "contact-support",
    "UPDATE_SWFW": "update-driver",
    "WORKFLOW_XID_45": "follow-other",
    "WORKFLOW_XID_48": "reset-gpu",
    "WORKFLOW_NVLINK_ERR": "reset-gpu",
    "WORKFLOW_NVLINK5_ERR": "follow-other",  # the line's own unit and bits decide, or the Xid 154 after it
    "XID_154": "follow-other",
    "XID_154_EVAL": "follow-other",
    "": "contact-support",
}
RECOVERIES = {  # nvmlDeviceGetFieldValues, NVML_GPU_RECOVERY_ACTION_*
    "None": "nothing",
    "GPU Reset Required": "reset-gpu",
    "Node Reboot Required": "reboot",
    "Drain P2P": "restart-program",
    "Drain and Reset": "reset-gpu",
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """A second cause of the same line. `condition`: what tells it apart, to be read after “if”."""

    condition: str
    fault: Fault
    action: str
    next: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The meaning of an error. `action` is for programs, `next` the same for people; `command`: empty where there is none."""

    code: str  # xid-79, sxid-12028
    what: str
    fault: Fault
    action: str
    next: str
    command: str
    source: str
    alternative: Alternative | None = None
    general: bool = False  # the line proves no cause, or another line has it
    bare_command: str = ""  # the host's own, without what its node needs around it
    more: str = ""  # `next` without what `command` says already


def explain(text: str) -> Explanation | None:
    """The meaning of a line of a log, or of a code; None: not known."""
    text = _bare(text)
    if text.isdecimal() and len(text) <= 5:
        return _xid(int(text)) or _sxid(int(text))
    code = text.lower()
    if OWN.fullmatch(code) and not NAMED.search(text):
        if row := entry("gpunode.explain", "lines.yaml", code):
            return _line(row)
        if own := _own().get(code):
            what, source = own
            return _explanation(code, what, "", "see-message", source)
    return _behind_a_tag(text)


def _bare(line: str) -> str:
    """The line without colours, quotes' escapes, the time before it and a logger's record around it."""
    line = UNSEEN.sub("", line).lstrip("\ufeff")
    if line.lstrip().startswith("{"):
        with suppress(ValueError, TypeError, RecursionError):
            record = json.loads(line)
            said = record.get("MESSAGE", record.get("log"))
            said = bytes(said).decode(errors="replace") if isinstance(said, list) else said
            name = record.get("SYSLOG_IDENTIFIER")
            if isinstance(said, str):
                line = f"{name}[{record.get('_PID', 0)}]: {said}" if name else said
    line = " ".join(line.replace('\\"', '"').split())[:LONGEST]
    return line[match.end() :] if (match := TIMES.match(line)) else line


def _behind_a_tag(text: str, index: Index | None = None) -> Explanation | None:
    """The meaning of a line; a name before it, of a host, a pod or a program, hides none."""
    whole = _meaning(text, index)
    if (whole is None or whole.general) and (match := TAG.match(text)):
        rest = _meaning(text[match.end() :], index)
        return rest if whole is None or (rest and not rest.general) else whole
    return whole


def _meaning(text: str, index: Index | None) -> Explanation | None:
    """`index`: of the rows, to look at those alone that may match."""
    low = text.lower()
    if "xid" in low or "nvswitch" in low:
        if match := XID.search(text):
            return _xid(int(match["code"]), match["gpu"], match["rest"])
        if match := SXID.search(text) or NVSWITCH.search(text):
            return _sxid(int(match["code"]), match["severity"])
        if match := NAMED.search(text):
            if match[0] == text or OF_A_GPU.search(text):
                meaning = (_sxid if match["kind"].lower() == "sxid" else _xid)(int(match["code"]))
                again = f" {AGAIN}" if TAKEN.search(text) else ""
                return meaning and replace(meaning, next=meaning.next + again)
            return None
    rows, numbers = _lines(), index.numbers(text) if index else range(len(_lines()) + 1)
    row = next(
        (
            rows[number]
            for number in numbers
            if number < len(rows)
            and _pattern(rows[number].get("match", NEVER)).search(text)
            and ("failure" not in rows[number] or _reports_failure(text))
        ),
        None,
    )
    of_cuda = numbers and numbers[-1] >= len(rows)
    if of_cuda and (row is None or row["fault"] == "unknown") and (kind := _cuda(text)):
        row = entry("gpunode.explain", "lines.yaml", kind)
    return _line(row) if row else None


@cache
def _index() -> Index:
    """Of the rows; a number after theirs is of a line that may name an error of CUDA."""
    texts = (re.escape(row[3]) for group in _table("cuda").values() for row in group if row[3])
    return Index([*(row.get("match", NEVER) for row in _lines()), *texts, "cuda|cuInit|cuCtx|cuDevice"])


def _reports_failure(text: str) -> bool:
    """Whether the line reports a failure of something that is NVIDIA's: only then a general row may answer."""
    words = _words()
    rest = words["negated"].sub(" ", text)
    if not words["failure"].search(rest) or not words["nvidia"].search(rest):
        return False
    return not words["others"].search(rest)


@cache
def _words() -> Mapping[str, re.Pattern[str]]:
    """The patterns of general.yaml; a line's break there is none of the pattern."""
    return {
        name: re.compile(text.replace(" |", "|").strip(), re.IGNORECASE)
        for name, text in table("gpunode.explain", "general.yaml").items()
    }


def _cuda(text: str) -> str:
    """The row of lines.yaml for the error of CUDA that the text names, by its text, its name or its number; else empty."""
    rows = [row for group in _table("cuda").values() for row in group]
    kind = ""
    # Other programs have some of CUDA's own texts, too.
    if (match := _cuda_texts().search(text)) and (
        match["common"] or BEFORE_A_TEXT.fullmatch(text[: match.start()]) or OF_CUDA.search(text)
    ):
        words = (match["own"] or match["common"]).lower()
        kind = next(row[4] for row in rows if row[3].lower() == words)
    elif match := CUDA_NAME.search(text):
        name = match["name"].replace("_", "").lower()
        kind = next((row[4] for row in rows if name in (_plain(row[1]), _plain(row[2]))), "")
    elif match := _number(text):
        kind = next((row[4] for row in rows if row[0] == match["code"]), "")
    # NCCL's own calls are not the program's.
    return "" if kind == "launch-refused" and "NCCL" in text else kind


def _number(text: str) -> re.Match[str] | None:
    """Where the text names an error of CUDA by its number, after a call or before it."""
    match = CUDA.search(text)
    return match if match and (match[0] == text or FAILED.search(match[0])) else RETURNED.search(text)


def _plain(name: str) -> str:
    return name.removeprefix("CUDA_ERROR_").removeprefix("cudaError").replace("_", "").lower()


@cache
def _cuda_texts() -> re.Pattern[str]:
    """CUDA's texts, the longest first. Those that other programs print, too, have to follow an error of CUDA."""
    rows = sorted(
        (row for group in _table("cuda").values() for row in group if row[3]),
        key=lambda row: len(row[3]),
        reverse=True,
    )
    own, every = (
        "|".join(re.escape(row[3]) for row in kind) for kind in ([r for r in rows if not r[5]], rows)
    )
    failed = r"(?:cuda|\bcu[A-Z]\w{1,40}).{0,60}?(?:err(?:or)?|fail(?:ure|ed)?|returned|status)\w{0,12}(?:[\W\d]{0,12}|.{0,90}['\"]| (?:at|in)\b.{0,80}: )"
    return re.compile(
        rf"\b(?P<own>{own})|(?:{failed}|(?:cuda|GPUassert)\W{{1,4}})(?P<common>{every})\b", re.IGNORECASE
    )


@cache
def _own() -> Mapping[str, tuple[str, str]]:
    """What gpunode's own codes mean, and where that stands: in a table of the documents, else in codes.yaml."""
    known = {
        code: (what, "gpunode: `gpunode help reference/codes`")
        for codes in table("gpunode.explain", "codes.yaml").values()
        for code, what in codes.items()
    }
    for name in PAGES:
        for cells, text in ROW.findall(wording.read(name)):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.replace(" | ", " · "))
            for code in re.findall(r"`([^`]+)`", cells):
                known.setdefault(code, (plain, f"gpunode: `gpunode help {name}`"))
    return known


def explain_lines(text: str) -> Sequence[tuple[str, Explanation]]:
    """The lines that are known, each meaning once: those with a cause, then those without; each in their order.

    A line that names no cause, or another line's, is left out beside a specific one. nvidia-smi's line of the kernel tells of nvidia-smi alone.
    """
    known: dict[Explanation, str] = {}
    lines = text.splitlines()
    index = _index() if len(lines) > FEW else None
    seen: set[str] = set()
    for line in lines:
        bare = _bare(line)
        if bare in seen or ECHO.match(line):
            continue
        seen.add(bare)
        if explanation := _behind_a_tag(bare, index) if len(lines) > 1 else explain(line):
            known.setdefault(explanation, line.strip())
    others = [meaning for meaning, line in known.items() if OF_SMI in line]
    own = [meaning for meaning in known if meaning not in others]
    specific = [meaning for meaning in own if not meaning.general] or own
    ranked = [*sorted(specific, key=lambda meaning: meaning.fault == "unknown"), *others]
    return [(known[meaning], meaning) for meaning in ranked]


def _xid(code: int, gpu: str = "", rest: str = "") -> Explanation | None:
    row = _table("xid").get(str(code))
    if row is None:
        return None
    _, name, fault, immediate, later, what, hint = row[0]
    action = ACTIONS[immediate]
    if verdict(code) is Verdict.APPLICATION and action in ("reset-gpu", "contact-support"):
        action = "restart-program" if immediate else "nothing"
    what = f"Xid {code}: {NAMES.get(code) or what} ({name})"
    if (match := NVLINK5.search(rest)) and (rule := _nvlink5(code, match)):
        action, later = ACTIONS[rule[5]], rule[6]
        what = f"{what}: {match['unit']}, {rule[7].rstrip('*?').lower()}"
    elif (match := RECOVERY.search(rest)) and match["action"] in RECOVERIES:
        action, what = RECOVERIES[match["action"]], f"{what}: now “{match['action']}”"
    other = next((_alternative(row) for row in _lines() if code in row.get("xid", ())), None)
    # An alternative is what to do if it comes back.
    more = hint or ("" if other else _actions()["later"].get(later, ""))
    meaning = _explanation(f"xid-{code}", what, fault, action, XID_SOURCE, gpu, more)
    return replace(meaning, alternative=other)


def _nvlink5(code: int, match: re.Match[str]) -> Sequence[str] | None:
    """The rule of this unit and these bits."""
    bits = f"{int(match['info'], 16):032b}"
    for rule in _table("nvlink5").get(str(code), ()):
        known = match["unit"] in rule[1].split("/") and int(match["status"], 16) == int(rule[4], 16)
        if known and any(re.fullmatch(layout.replace("-", "."), bits) for layout in rule[2:4]):
            return rule
    return None


def _sxid(code: int, logged: str | None = None) -> Explanation | None:
    """`logged`: the severity that the line has; it decides where the table leaves it open."""
    row = _table("sxid").get(str(code))
    if row is None:
        return None
    _, name, severity, otherwise = row[0]
    fatal = (
        (logged or severity).lower() != "non-fatal" if severity == "may be fatal" else severity != "non-fatal"
    )
    what = f"SXid {code}: {name} of an NVSwitch, {severity}"
    later = "If it comes back, restart the fabric manager and check the switch."
    if fatal and severity == "always fatal":
        later = ""
    return _explanation(
        f"sxid-{code}",
        what,
        "hardware",
        "reset-fabric" if fatal else otherwise or "nothing",
        SXID_SOURCE,
        later=later,
    )


def _line(row: Mapping[str, Any]) -> Explanation:
    action = _actions()[row["action"]]
    around = action.get("around", "")
    bare = action.get("command", "") if around else row.get("command", action.get("command", ""))
    general = GENERAL if row.get("failure") else ""
    said = "" if "next" in row else action["next"]
    first = "" if "command" in row else action.get("first", "")
    rest = _join(row.get("next", ""), row.get("more", ""), first)
    return Explanation(
        row["code"],
        row["what"],
        row["fault"],
        row["action"],
        _join(general, said, rest),
        row.get("command", around.format(bare) or bare),
        row["source"],
        _alternative(row),
        row["action"] == "follow-other" and (bool(general) or row["fault"] != "unknown"),
        bare,
        rest if around else _join(general, said, rest),
    )


@cache
def _lines() -> Sequence[Mapping[str, Any]]:
    """The rows of lines.yaml, the general ones last."""
    rows = cast("Sequence[Mapping[str, Any]]", table("gpunode.explain", "lines.yaml"))
    return sorted(rows, key=lambda row: "failure" in row)


@cache
def _pattern(match: str) -> re.Pattern[str]:
    """Compiled once a line comes as far as its row."""
    return re.compile(match, re.IGNORECASE)


def _alternative(row: Mapping[str, Any]) -> Alternative | None:
    return Alternative(*row["or"].values()) if "or" in row else None


def _explanation(
    code: str, what: str, fault: str, action: str, source: str, gpu: str = "", later: str = ""
) -> Explanation:
    advice = _actions()[action]
    address = f"{gpu.lower()}.0" if gpu and "." not in gpu else gpu.lower()
    bare = advice.get("command", "").format(gpu=address or "GPU")
    around = advice.get("around", "")
    rest = _join(advice.get("first", ""), later)
    following = _join(advice["next"], rest)
    return Explanation(
        code,
        what,
        cast("Fault", fault),
        action,
        following,
        around.format(bare) or bare,
        source,
        bare_command=bare,
        more=rest if around else following,
    )


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _actions() -> Mapping[str, Mapping[str, str]]:
    return table("gpunode.explain", "actions.yaml")


@cache
def _table(name: str) -> Mapping[str, Sequence[Sequence[str]]]:
    """The rows of a table by their code, each with all of its columns."""
    lines = files("gpunode.explain").joinpath(f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    columns = next(line for line in reversed(lines) if line.startswith("#")).count("\t") + 1
    rows: dict[str, list[Sequence[str]]] = {}
    for line in lines:
        if not line.startswith("#"):
            cells = line.split("\t")
            rows.setdefault(cells[0], []).append([*cells, *[""] * (columns - len(cells))])
    return rows
