"""Sentences for users: the commands and pages that they name, and how long lists read."""

import difflib
import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """A command of gpunode's that a user can run next: `gpunode provision --limit gpu-01`; and what it `does`, for a line below."""

    name: str  # provision, plugin deploy
    options: str = ""
    does: str = ""

    def __str__(self) -> str:
        return self.on("")

    def on(self, inventory: str) -> str:
        """The command for this inventory, already quoted; "": the usual one."""
        command = " ".join(filter(None, ("gpunode", self.name, inventory, self.options)))
        return command + (f"\nit will {self.does}" if self.does else "")


class Advice(str):
    """A text with commands in it. It is its plain sentence wherever a text is; `on` names the inventory in its commands.

    A text made of several is made by `lines`, which keeps what each of them knows.
    """

    parts: tuple[str | Command, ...]

    def __new__(cls, *parts: str | Command) -> "Advice":
        made = super().__new__(cls, "".join(map(str, parts)))
        made.parts = parts
        return made

    def on(self, inventory: str) -> str:
        """The sentence with this inventory, already quoted, in each command."""
        return "".join(part.on(inventory) if isinstance(part, Command) else part for part in self.parts)


class Folded(str):
    """A text for programs and files; people are shown `brief` in its place."""

    brief: str

    def __new__(cls, text: str, brief: str = "") -> "Folded":  # a copy gets it back from its state
        made = super().__new__(cls, text)
        made.brief = brief
        return made


def brief(text: str) -> str:
    return text.brief if isinstance(text, Folded) else text


COMMAND = re.compile(
    r"(?<=`)gpunode (?!help )(uncordon-gpu [^\s`]+|(?:(?:plugin|share|run|why) )?[a-z-]+)(?: ([^`]*))?(?=`)"
)


def advise(text: str) -> Advice:
    """The text as advice: its commands of gpunode are those in backquotes, as in `gpunode provision --limit gpu-01`;
    `gpunode help` takes no inventory."""
    parts: list[str | Command] = []
    end = 0
    for match in COMMAND.finditer(text):
        parts += [text[end : match.start()], Command(match[1], match[2] or "")]
        end = match.end()
    return Advice(*parts, text[end:])


def page(topic: str) -> str:
    """The command that shows this page of the documents: every installation has it."""
    return f"`gpunode help {topic}`"


ISSUES = "https://github.com/gpunode/gpunode/issues"
BUG = f"Report this bug with the archive of `gpunode support-bundle`: {page('troubleshooting#when-you-ask-for-help')}"


def pages() -> dict[str, Path]:
    """The documents' pages by name: in the installed package, or in the checkout. Reference pages keep their folder."""
    package = Path(__file__).resolve().parent
    folder = package / "docs"
    folder = folder if folder.is_dir() else package.parent / "docs"
    files = sorted(folder.glob("**/*.md"))
    return {str(file.relative_to(folder).with_suffix("")).removeprefix("howto/"): file for file in files}


# Splits a page into the text before the first title; then of each its level, title and text.
TITLES = re.compile(r"^(?=(##+) (.*)$)", re.MULTILINE)


def read(topic: str) -> str:
    """A page, or with `page#section` that section, as Markdown; empty where there is none. Takes links of pages, too."""
    name, _, section = topic.partition("#")
    file = pages().get(re.sub(r"^(\.\./|docs/|howto/)*|\.md$", "", name))
    text = re.sub(r"<!--.*?-->\n*", "", file.read_text(encoding="utf-8"), flags=re.DOTALL) if file else ""
    if not section:
        return text
    parts = TITLES.split(text)
    places = [at for at in range(1, len(parts), 3) if anchor(parts[at + 1]) == section]
    if not places:
        return ""
    below = itertools.takewhile(
        lambda at: len(parts[at]) > len(parts[places[0]]), range(places[0] + 3, len(parts), 3)
    )
    return "".join(parts[at + 2] for at in (places[0], *below))


LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def name_pages(text: str) -> str:
    """Markdown whose links have the command that shows their page in the place of its file; of a link within a page its text stays."""

    def name(link: re.Match[str]) -> str:
        words, file, section = link[1], link[2], link[3] or ""
        topic = re.sub(r"^(\.\./|docs/|howto/)*|\.md$", "", file)
        known = next((name for name in (topic, f"reference/{topic}") if name in pages()), None)
        if known is None:
            return link[0] if file else words
        return f"{words} ({page(known + section)})"

    return LINK.sub(name, text)


KEY = re.compile(r"^\| `([\w.<>]+)` \| (.*) \|$", re.MULTILINE)  # a row of the tables of the inventory's keys


def sections(topic: str) -> dict[str, str]:
    """`page` or `page#section` → title of those whose title has all words of the topic, or longer ones; pages first, by their names, too.
    Reference pages are last."""
    words = topic.lower().replace("-", " ").split()

    def has(text: str) -> bool:
        return all(re.search(rf"\b{re.escape(word)}", text.lower().replace("-", " ")) for word in words)

    whole: dict[str, str] = {}
    parts: dict[str, str] = {}
    for name in sorted(
        pages().keys() - {"reference/commands"}, key=lambda name: (name.startswith("reference"), name)
    ):
        text = re.sub(r"^```.*?^```", "", read(name), flags=re.M | re.S)
        first = text.partition("\n")[0].lstrip("# ")
        if has(name) or has(first):
            whole[name] = first
        parts |= {f"{name}#{anchor(title)}": title for _, title in TITLES.findall(text) if has(title)}
    return whole | parts


def keys(topic: str) -> dict[str, str]:
    """Key of the inventory → its meaning, values and default, of keys that are the topic or begin like it."""
    rows = {}
    for key, row in KEY.findall(read("reference/inventory")):
        if any(part.startswith(topic) for part in (key, key.rpartition(".")[2])):
            *first, meaning = filter(None, re.split(r"\s*\|\s*", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", row)))
            more = [f"{name}: {cell}." for name, cell in zip(("Values", "Default"), first, strict=False)]
            rows[key] = " ".join([f"{meaning.rstrip('.:')}.", *more])
    return rows


def mentions(topic: str) -> list[str]:
    """The sections that have the topic in their text, those that have it most often first; reference pages last."""
    counts: Counter[str] = Counter()
    for name in pages():
        before, *parts = TITLES.split(read(name).lower())
        counts[name] = before.count(topic.lower())
        for title, text in zip(parts[1::3], parts[2::3], strict=True):
            counts[f"{name}#{anchor(title)}"] += text.count(topic.lower())
    return sorted(+counts, key=lambda name: (name.startswith("reference"), -counts[name]))


def anchor(title: str) -> str:
    """The name of a section in links, as GitHub makes it of the title."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-")


def lines(texts: Iterable[str], separator: str = "\n") -> Advice:
    """Those of the texts that are not empty, one below the other."""
    parts: list[str | Command] = []
    for text in filter(None, texts):
        parts += [*([separator] if parts else []), *(text.parts if isinstance(text, Advice) else [text])]
    return Advice(*parts)


def about(subject: str, words: str) -> str:
    """`subject: words`; the words alone where there is no subject."""
    return lines((f"{subject}:", words), " ") if subject else words


# What differs between hosts for which the same is wrong: UUIDs, PCI addresses, ids of containers, IPv4 addresses.
OWN = re.compile(
    r"(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.\d|\b[0-9a-f]{64}\b"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}\b"
)


def common(text: str, host: str) -> str:
    """The text of one host without what differs from host to host."""
    return OWN.sub("…", without_name(text, host))


def without_name(text: str, host: str) -> str:
    """The text with HOST in the place of this host's name."""
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST", text)


def several(number: int, noun: str) -> str:
    """`1 host`, `3 hosts`, `2 processes`."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def lasting(seconds: float) -> str:
    """`20 s`, `30 min`: a time limit, rounded up; from two minutes in minutes."""
    return f"{math.ceil(seconds)} s" if seconds < 120 else f"{math.ceil(seconds / 60)} min"


def moment(seconds: float) -> str:
    """`2026-11-27 21:04 CET`: a time here, as all screens and pages show it."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(seconds))


def few(items: Sequence[str], most: int) -> str:
    """`a, b and 3 more`: at most `most` items, and the number of the others."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def near(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Those of the known names that are like this one; the one that differs in capitals alone."""
    names = {each.lower(): each for each in known}
    same = [name.lower()] if name.lower() in names else []
    return [names[each] for each in same or difflib.get_close_matches(name.lower(), names, most, cutoff)]


def nearest(topic: str) -> str:
    """The page whose name is most like this; empty if none is."""
    return "".join(difflib.get_close_matches(topic, pages(), 1))
