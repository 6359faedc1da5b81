"""`apt-get update` and its errors."""

import glob
import re
from typing import Dict, List, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.record import Run
from gpunode.agent.system import below, last, text_of, unrooted
from gpunode.packages.on_host.apt import SAID, apt_get


def refresh(this: Run) -> None:
    """`apt-get update`. A repository that is not gpunode's only causes warnings: hosts have old ones."""
    patience = ("-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20")
    status, text = apt_get(this, *patience, "update")
    own = own_repositories()
    problems = update_problems(text)
    for code, uri, words in problems:
        if code == "conflicting-signed-by":
            raise Failure(
                code, "apt has %s in two lists with different keys" % uri, [words, *lists_with(uri)]
            )
        if code == "sources-broken":
            raise Failure(code, "apt cannot read its list of sources: " + words)
        sentence = {
            "repository-unreachable": "apt could not fetch from %s: %s",
            "repository-unsigned": "apt does not trust the signature of %s: %s",
            "repository-sha1": "apt refuses the signature of %s: %s",
            "repository-damaged": "apt got a file of %s that is not the one its index names: %s",
            "repository-expired": "the index of %s %s",
        }[code] % (uri, words)
        if any((uri + "/").startswith(mine + "/") for mine in own):
            raise Failure(code, sentence, last(text, 12))
        this.warnings.append(sentence)
        this.progress(sentence)
    if status and not problems:
        raise Failure(
            "apt-failed", "apt-get update failed: " + (last(text, 1) or ["no output"])[-1], last(text, 12)
        )


def own_repositories() -> List[str]:
    found = []
    for path in glob.glob(below("/etc/apt/sources.list.d/gpunode-*")):
        found += re.findall(r"\w+://[^\s\"']+", text_of(unrooted(path)) or "")
    return [uri.rstrip("/") for uri in found]


def lists_with(uri: str) -> List[str]:
    """apt's source files that name this repository."""
    files = glob.glob(below("/etc/apt/sources.list")) + sorted(glob.glob(below("/etc/apt/sources.list.d/*")))
    names = [unrooted(path) for path in files]
    return [name for name in names if uri.rstrip("/") in (text_of(name) or "")]


def update_problems(text: str) -> List[Tuple[str, str, str]]:
    """The errors of `apt-get update`: (code, URI, words), one for each repository."""
    found: Dict[str, Tuple[str, str, str]] = {}
    conflict = re.search(
        SAID + r"(Conflicting values set for option Signed-By regarding source (\S+).*)", text, re.M
    )
    if conflict:
        return [("conflicting-signed-by", conflict.group(2), conflict.group(1))]
    broken = re.search(SAID + r"((?:Malformed|Type '|Unable to parse|The list of sources).*)", text, re.M)
    if broken:
        return [("sources-broken", "", broken.group(1))]
    refused = r".*?(?:GPG error|OpenPGP signature verification failed): (\S+) [^:]*: (.*)"  # of gpgv, of sqv
    for uri, words in re.findall(SAID + refused, text, re.M):
        code = "repository-sha1" if "SHA1 is not considered secure" in words else "repository-unsigned"
        found.setdefault(site(uri), (code, site(uri), words))
    for uri, words in re.findall(
        SAID + r"Release file for (\S+) (is (?:expired|not valid yet).*)", text, re.M
    ):
        found.setdefault(site(uri), ("repository-expired", site(uri), words))
    for uri, words in re.findall(SAID + r"Failed to fetch (\S+)\s+(.*)", text, re.M):
        unsigned = re.search(r"signature|PUBKEY|signed|SHA1", words)
        code = "repository-unsigned" if unsigned else "repository-unreachable"
        code = "repository-damaged" if re.search(r"Hash Sum mismatch|unexpected size", words) else code
        found.setdefault(site(uri), (code, site(uri), words))
    for uri, words in re.findall(SAID + r"The repository '(\S+)[^']*' (.*)", text, re.M):
        code = "repository-unreachable" if "Release file" in words else "repository-unsigned"
        found.setdefault(site(uri), (code, site(uri), words))
    return list(found.values())


def site(uri: str) -> str:
    """The repository's URI, from the URI of a file in it."""
    return re.sub(r"/(dists/.*|\./.*|(In)?Release(\.gpg)?|Packages(\.\w+)?|by-hash/.*)?$", "", uri)
