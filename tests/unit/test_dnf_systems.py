"""What is planned on each system of rpm and dnf, by release, branch and flavour: no real one was tried for these."""

import base64
import hashlib
import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

from gpunode.engine import chain as pipeline
from gpunode.engine.chain import decide
from gpunode.errors import Refused
from gpunode.model import Os, Packages, Plan, Repository, WriteFile
from gpunode.packages import repositories, signing
from gpunode.packages.names import PackageNames
from tests import cases, tables

CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
TOOLKIT = "https://nvidia.github.io/libnvidia-container/stable/rpm"
STREAM = "/etc/dnf/modules.d/nvidia-driver.module"
BARE: dict[str, Any] = {"/etc/yum.repos.d/epel.repo": False}
# os, release: `uname -r`, directory, headers, package of EPEL
SYSTEMS = {(name, release): row for name, release, *row in tables.read("dnf-systems")}
# branch, GPU: the flavour's package and stream. P100 has no open module; H100 takes the open one.
DRIVERS = {
    ("570", "2330"): ("kmod-nvidia-open-dkms", "570-open"),
    ("580", "2330"): ("kmod-nvidia-open-dkms", "580-open"),
    ("580", "15f8"): ("kmod-nvidia-latest-dkms", "580-dkms"),
    ("595", "2330"): ("kmod-nvidia-open-dkms", "595-open"),
    ("615", "2901"): ("kmod-nvidia-open-dkms", "615-open"),
    ("620", "2330"): ("kmod-nvidia-open-dkms", "620-open"),
}


def planned(
    system: tuple[str, str], driver: str, gpu: str, files: dict[str, Any], arch: str = "amd64"
) -> Plan:
    """A bare host's plan."""
    kernel = SYSTEMS[system][0] if arch == "amd64" else SYSTEMS[system][0].replace("x86_64", "aarch64")
    over = {
        "os": {"id": system[0], "version": system[1], "pretty": " ".join(system), "arch": arch},
        "kernel": kernel,
        "files": files,
        "pci": [{"address": "0000:19:00.0", "device": gpu}],
    }
    host, seen = cases.host("rocky", {"driver": driver}), cases.facts("rocky", over)
    return pipeline.plan(host, seen, decide(host, seen, None))


def installs(plan: Plan) -> list[str]:
    """Every package that is installed, in order."""
    return [str(spec) for change in plan.changes if isinstance(change, Packages) for spec in change.install]


@pytest.mark.parametrize(("system", "driver"), list(itertools.product(SYSTEMS, DRIVERS)), ids="-".join)
def test_a_bare_host_gets_the_packages_and_the_stream_of_its_release(
    system: tuple[str, str], driver: tuple[str, str]
):
    """No display server's package is among them; the four of the toolkit follow."""
    _, directory, headers, epel = SYSTEMS[system]
    module, stream = DRIVERS[driver]
    if directory == "rhel10" and driver[0] == "570":
        with pytest.raises(Refused, match="begins with 580"):
            planned(system, *driver, {})
        return
    if epel == "":
        with pytest.raises(Refused, match="no enabled repository is EPEL"):
            planned(system, *driver, BARE)
    plan = planned(system, *driver, {} if epel == "" else BARE)
    assert installs(plan) == [
        *([epel] if epel else []),
        "python3-dnf-plugin-versionlock",
        *(
            [headers.replace("-devel-", "-devel-matched-")]
            if re.search(r"\.el(9|10)(_\d+)?$", headers)
            else []
        ),
        headers,
        f"nvidia-driver-cuda 3:{driver[0]}.*",
        f"{module} 3:{driver[0]}.*",
        *(f"{spec.name} 1.20.1-1" for spec in PackageNames("dnf").toolkit("1.20.1")),
    ]
    text = "".join(c.content for c in plan.changes if isinstance(c, WriteFile) and c.path == STREAM)
    assert (f"stream={stream}\n" in text) is (directory != "rhel10")
    assert bool(text) is (directory != "rhel10")
    os = Os(*system, "", arch="amd64")
    assert repositories.repository_uri("driver", os) == f"{CUDA}/{directory}/x86_64"
    assert repositories.repository_uri("toolkit", os) == f"{TOOLKIT}/x86_64"


@pytest.mark.parametrize("system", SYSTEMS, ids="-".join)
def test_servers_of_arm_have_directories_and_headers_of_their_own(system: tuple[str, str]):
    """Those of the driver are called sbsa."""
    _, directory, headers, _ = SYSTEMS[system]
    assert headers in installs(planned(system, "595", "2342", {}, "arm64"))
    os = Os(*system, "", arch="arm64")
    assert repositories.repository_uri("driver", os) == f"{CUDA}/{directory}/sbsa"
    assert repositories.repository_uri("toolkit", os) == f"{TOOLKIT}/aarch64"


@pytest.mark.parametrize(
    ("kernel", "package"),
    [
        ("6.12.40-63.114.amzn2023.x86_64", "kernel6.12-devel-6.12.40-63.114.amzn2023"),
        ("6.18.3-9.17.amzn2023.aarch64", "kernel6.18-devel-6.18.3-9.17.amzn2023"),
        ("5.14.0-570.el9.aarch64+64k", "kernel-64k-devel-5.14.0-570.el9"),
        ("5.14.0-570.el9.x86_64+rt", "kernel-rt-devel-5.14.0-570.el9"),
        ("6.8.0-custom", None),
    ],
)
def test_the_headers_are_those_of_the_running_kernels_variant(kernel: str, package: str | None):
    """None are guessed for a kernel that no distribution built."""
    packages = [spec.name for spec in PackageNames("dnf").headers(kernel)]
    assert [name for name in packages if "matched" not in name] == ([package] if package else [])
    assert all(name.replace("-matched", "") == package for name in packages)


# Of the key "lab" that gpg 2.2 made for this test.
KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawLjgRYJKwYBBAHaRw8BAQdA6+VtY73FOR/mSgXSteW2eTq763GRBpWaKHzQ
JHxIljC0A2xhYoiQBBMWCAA4FiEEhzgy5zGWmN7SBz/HHpK5uWaZJ9UFAmsC44EC
GwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQHpK5uWaZJ9V+XQEAuQnGn0lJ
sphHS14Ned4p51ibTbqwDKbdah+6mLSWWO0BAJz0rWcKTfS9I5XQsHNPlsYSzZFv
aHqRn0p0klw07W4A
=V2z/
-----END PGP PUBLIC KEY BLOCK-----
"""


def test_a_fingerprint_is_gpgs():
    """Of an armoured key, whatever stands around it."""
    assert signing.fingerprint(f"a comment\n{KEY}") == "873832E7319698DED2073FC71E92B9B9669927D5"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no key",
        KEY.replace("PUBLIC", "PRIVATE"),
        KEY[:80] + "\n-----END",
        KEY.replace("\nm", "\n*", 1),
        cases.KEY,
        KEY.replace("KEY BLOCK-----\n\n", "KEY BLOCK-----\n"),
    ],
)
def test_what_is_no_key_has_no_fingerprint(text: str):
    """With a reason."""
    with pytest.raises(ValueError, match=r"key|armour"):
        signing.fingerprint(text)


def armoured(data: bytes, text: str = "") -> str:
    """As gpg writes it."""
    lines = base64.encodebytes(data).decode()
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n{text}\n{lines}-----END PGP PUBLIC KEY BLOCK-----\n"


def packet(tag: int, body: bytes, *, new: bool = False) -> bytes:
    """With a length of two bytes, or of five in the new format."""
    if new:
        return bytes([0xC0 | tag, 255]) + len(body).to_bytes(4, "big") + body
    return bytes([0x80 | tag << 2 | 1]) + len(body).to_bytes(2, "big") + body


OURS, EVIL = b"\x04NVIDIA" * 60, b"\x04somebody" * 60
# Key, name, its signature, two subkeys for signing: as the toolkit's key (NVIDIA/nvidia-docker: gpgkey) has them.
WHOLE = b"".join(packet(tag, OURS if tag == 6 else b"\x04") for tag in (6, 13, 2, 14, 2, 14, 2))
PRINT = hashlib.sha1(b"\x99" + len(OURS).to_bytes(2, "big") + OURS).hexdigest().upper()


@pytest.mark.parametrize(
    "text",
    [
        armoured(WHOLE),
        armoured(WHOLE, "Version: GnuPG v2\nComment: a: b\n").replace("\n", "\r\n"),
        armoured(packet(6, OURS, new=True)),
    ],
)
def test_a_key_of_any_shape_has_a_fingerprint(text: str):
    assert signing.fingerprint(text) == PRINT


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (armoured(WHOLE) + armoured(packet(6, EVIL)), "2 armoured blocks"),
        (armoured(WHOLE) + armoured(packet(6, EVIL)).replace("PUBLIC KEY BLOCK", "MESSAGE"), "2 armoured"),
        (armoured(WHOLE + packet(6, EVIL)), f"2 keys, expected one: {PRINT}, "),
        (armoured(WHOLE + packet(6, EVIL, new=True)), "2 keys, expected one"),
        (armoured(WHOLE + packet(5, EVIL)), "packets of type 5"),
        (armoured(WHOLE + b"\x9b" + EVIL), "unknown length"),
        (armoured(WHOLE + b"\xc6\xe9" + EVIL), "unknown length"),
        (armoured(WHOLE)[:-41] + ":" + armoured(packet(6, EVIL))[37:], "damaged"),  # gpg skips the colon
        (armoured(WHOLE[:90]) + "\n" + armoured(WHOLE)[37:], "cut off|damaged"),
        (armoured(WHOLE).replace("\n", "\n\n", 5), "damaged"),  # apt begins at the first empty line
        ("\u0186" + armoured(WHOLE), "damaged"),  # gpg takes it for the first byte of a binary key
    ],
)
def test_a_text_with_another_key_beside_the_right_one_is_refused(text: str, words: str):
    """dnf and apt would trust every key in the file."""
    with pytest.raises(ValueError, match=words):
        signing.fingerprint(text)


# The same key, valid for 30 days of 2020; and as its owner extended it then, until 2041.
EXPIRED = """-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEXgvhABYJKwYBBAHaRw8BAQdAaXlH9wa35KpUTPHH/q/Pm+/cfnyFP3WL/RHR
KfBu6YS0A2xhYoiWBBMWCAA+FiEEzbcWwwVaGC9CcicNIytoXjgW0QYFAl4L4QAC
GwMFCQAnjQAFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQIytoXjgW0QaZ8gEA
mqefgblUL5lDJvnBKzunMgepJ+PlTfMU5cjLe57O86oBAMtGaJb9Wfl9JSFLOdzq
48laZiYe25LkuMUsPBrTpoQA
=gjAY
-----END PGP PUBLIC KEY BLOCK-----
"""
EXTENDED = """-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEXgvhABYJKwYBBAHaRw8BAQdAaXlH9wa35KpUTPHH/q/Pm+/cfnyFP3WL/RHR
KfBu6YS0A2xhYoiWBBMWCAA+AhsDBQsJCAcCBhUKCQgLAgQWAgMBAh4BAheAFiEE
zbcWwwVaGC9CcicNIytoXjgW0QYFAl4XvoAFCSk+vYAACgkQIytoXjgW0QaFVwEA
tj5teQSJOT7hKC2yA04jcu/VZl98t/Onu0FOXp0XWHkBAJlrEEl9i92hGfo1u7Ms
yHKp+vTxDQ+prBX67mICRPEK
=XTR9
-----END PGP PUBLIC KEY BLOCK-----
"""


@pytest.mark.parametrize("base", ["rocky", "modern", "suse"])
def test_the_inventorys_key_for_nvidias_own_address_has_the_whole_fingerprint(base: str, monkeypatch):
    """One that is known, or one that the user has written beside it: another key can end in the same digits."""
    own, whole = f"{CUDA}/some/x86_64", signing.fingerprint(KEY)
    seen = cases.facts(base)

    def plan(known: str | None, given: str = "") -> Plan:
        monkeypatch.setattr(repositories, "key_fingerprint", lambda _, uri: known if uri == own else None)
        host = replace(cases.host(base), driver_repository=Repository(own, KEY, given))
        return pipeline.plan(host, seen, decide(host, seen, None))

    def refused(known: str | None, given: str = "") -> Refused:
        with pytest.raises(Refused) as error:
            plan(known, given)
        return error.value

    forged = f"{0:032}{whole[-8:]}"  # what is known, where it is KEY that was made to end alike
    assert f"its fingerprint is {whole}, NVIDIA's is {forged}" in refused(forged).message
    unknown = refused(whole[-8:])
    assert f"has the fingerprint {whole}; gpunode knows only that NVIDIA's ends with" in unknown.message
    assert f"`fingerprint: {whole}`" in unknown.hint
    assert "another key than its `fingerprint` names" in refused(whole[-8:], forged).message
    assert "another key than its `fingerprint` names" in refused(None, forged).message  # a mirror's
    none = refused("")
    assert f"has the fingerprint {whole}; gpunode knows none for {own}" in none.message
    assert f"`fingerprint: {whole}`" in none.hint
    for known, given in ((whole, ""), (whole[-8:], whole), ("", whole), (None, whole), (None, "")):
        assert plan(known, given)


@pytest.mark.parametrize("base", ["rocky", "modern", "suse"])
def test_the_toolkit_from_nvidias_repository_of_drivers_has_that_ones_key(base: str, monkeypatch):
    """It is NVIDIA's own address, no mirror's; and on RPM hosts packages are signed there, not the metadata."""
    host, seen = cases.host(base), cases.facts(base)
    uri = repositories.repository_uri("driver", seen.os)
    host = replace(host, toolkit_repository=Repository(uri, KEY), driver_repository=None, driver="none")
    with pytest.raises(Refused) as error:
        pipeline.plan(host, seen, decide(host, seen, None))
    assert f"`repositories.toolkit.key` is not the key of {uri}" in error.value.message
    assert ".pub file in that directory" in error.value.hint

    monkeypatch.setattr(repositories, "key_fingerprint", lambda *_: signing.fingerprint(KEY))
    changes = pipeline.plan(host, seen, decide(host, seen, None)).changes
    for change in changes:
        if isinstance(change, WriteFile) and change.path == "/etc/yum.repos.d/gpunode-toolkit.repo":
            assert "gpgcheck=1\nrepo_gpgcheck=0\n" in change.content


@pytest.mark.parametrize(
    ("base", "purpose", "key", "refused"),
    [
        ("modern", "driver", EXPIRED, True),
        ("modern", "toolkit", EXPIRED, True),
        ("modern", "toolkit", EXTENDED, False),
        ("rocky", "toolkit", EXPIRED, True),
        ("rocky", "toolkit", EXTENDED, False),
        ("rocky", "driver", EXPIRED, False),  # signs packages, of before; the real rpm takes them
    ],
)
def test_a_key_that_has_expired_is_named_before_anything_is_changed(
    base: str, purpose: str, key: str, refused: bool
):
    """apt and dnf would only say that a signature is invalid."""
    wishes = {f"{purpose}_repository": Repository("http://mirror.example/x", key)}
    host, seen = replace(cases.host(base), **wishes), cases.facts(base)
    wish = decide(host, seen, None)
    if not refused:
        assert pipeline.plan(host, seen, wish).changes
        return
    with pytest.raises(Refused, match=rf"`repositories.{purpose}.key` expired on 2020-01-31") as error:
        pipeline.plan(host, seen, wish)
    assert "http://mirror.example/x" in error.value.hint


@pytest.mark.parametrize(
    ("base", "purpose", "package"),
    [
        ("modern", "driver", "nvidia-driver-pinning"),
        ("modern", "toolkit", "nvidia-container-toolkit"),
        ("rocky", "toolkit", "nvidia-container-toolkit"),
    ],
)
def test_an_expired_key_refuses_no_host_that_needs_nothing_of_what_it_signs(
    base: str, purpose: str, package: str
):
    """It is a note there, also where only the host's clock is ahead; what is missing needs the key."""
    host = replace(
        cases.host(base),
        **{f"{purpose}_repository": Repository("http://mirror.example/x", EXPIRED)},
    )
    seen = replace(cases.facts(base), time=1580000000)
    bare = decide(host, seen, None)
    right = cases.applied(seen, pipeline.plan(host, seen, bare).changes)
    later = replace(right, time=1790000000)
    wish = decide(host, later, None)
    words = f"`repositories.{purpose}.key` expired on 2020-01-31"
    assert not any("expired" in note for note in bare.notes)
    steps = {step.step: step.changes for step in pipeline.plan(host, later, wish).steps}
    assert not steps.get("repository")
    assert not steps.get("toolkit")
    assert [note for note in wish.notes if words in note]
    gone = {name: value for name, value in later.packages.items() if not name.startswith(package)}
    assert gone != later.packages
    with pytest.raises(Refused, match=words):
        pipeline.plan(host, replace(later, packages=gone), decide(host, replace(later, packages=gone), None))
    other = replace(host, **{f"{purpose}_repository": Repository("http://mirror.example/y", EXPIRED)})
    with pytest.raises(Refused, match=words):
        pipeline.plan(other, later, decide(other, later, None))


def test_a_key_without_an_end_or_that_cannot_be_read_does_not_expire():
    """What cannot be read is judged elsewhere."""
    assert signing.expiry_time(KEY) is None
    assert signing.expiry_time(KEY.replace("mDME", "mDMF")) is None
    assert signing.expiry_time("no key") is None


OWNER = "CDB716C3055A182F4272270D232B685E3816D106"  # EXPIRED's fingerprint


def issued(made: int, *issuer: bytes, kind: int = 0x13) -> bytes:
    """A signature of then, without an end, by this issuer (subpackets)."""
    parts = [b"\x02" + made.to_bytes(4, "big"), *issuer]
    area = b"".join(bytes([len(part)]) + part for part in parts)
    return packet(2, bytes([4, kind, 22, 8]) + len(area).to_bytes(2, "big") + area + b"\0\0")


@pytest.mark.parametrize(
    ("issuer", "end"),
    [
        ((b"\x10" + b"somebody",), 1580428800),
        ((b"\x21\x04" + b"somebody" * 2 + b"else",), 1580428800),
        ((b"\x10" + bytes.fromhex(OWNER[-16:]),), None),
        ((b"\x21\x04" + bytes.fromhex(OWNER),), None),
        ((), None),
    ],
)
def test_only_its_own_signatures_let_a_key_live(issuer: tuple[bytes, ...], end: int | None):
    """A certification by another key has its own time, and says nothing of this one's."""
    block = EXPIRED.split("\n\n")[1].split("\n=", maxsplit=1)[0]
    later = issued(1700000000, *issuer)
    assert signing.expiry_time(armoured(base64.b64decode(block) + later)) == end
