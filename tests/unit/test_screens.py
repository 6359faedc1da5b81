"""What the demo shows of a command's output."""

from gpunode.sim import narration


def test_the_first_chain_is_whole_and_others_are_counted_unless_a_link_is_broken():
    broken = [" b", "   ✓ PCI       1x H100", "   ✗ module    not loaded", "       fix       modprobe nvidia"]
    lines = [
        " a",
        "   ✓ PCI       1x H100",
        "   ✓ module    nvidia",
        *broken,
        " c",
        "   ✓ PCI       1x H100",
        " 3 hosts",
    ]
    assert narration.chains_screen(lines) == [*lines[:3], *broken, " c: 1 links, all ✓", " 3 hosts"]


def test_results_are_the_refusals_and_the_hosts_results():
    lines = [
        " c    ✗ refused  no GPU",
        "NODE  UUID   RESULT  PODS",
        "a     GPU-1  passed  1",
        "HOST  RESULT",
        "a     verified",
    ]
    assert narration.results_screen(lines) == [lines[0], *lines[3:]]
    assert narration.results_screen(["x"]) == ["x"]


def test_a_long_text_ends_with_the_count_of_the_rest():
    assert narration.shorten(["x"] * 16) == ["x"] * 16
    assert narration.shorten(["x"] * 20) == [*["x"] * 15, "… and 5 lines more"]


def test_of_progress_only_the_ends_are_shown():
    ends = [
        " 5 hosts in 41.0 s: 4 changed",
        " 4 hosts OK: 11 of 11 links checked",
    ]
    assert narration.progress_ends([" a  probe", " 2 of 10 test pods finished", *ends]) == ends
