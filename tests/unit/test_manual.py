"""Man pages and completion are those of the commands."""

import shutil
import subprocess

import pytest

from tests import manual


def test_every_command_has_a_man_page_and_every_shell_its_completion():
    """With the options' texts of --help."""
    texts = dict(manual.files())
    assert {"man/man1/gpunode.1", "man/man1/gpunode-plugin-deploy.1", *manual.COMPLETIONS.values()} <= set(
        texts
    )
    assert "Leave out these hosts or groups." in texts["man/man1/gpunode-plan.1"]
    assert "_GPUNODE_COMPLETE" in texts[manual.COMPLETIONS["bash"]]
    assert manual.roff(".x -y\n'z \\`w`") == "\\&.x \\-y\n\\&'z \\ew"


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff")
def test_man_prints_every_page_without_a_warning():
    for path, text in manual.files():
        if path.startswith("man/"):
            done = subprocess.run(
                ["groff", "-Kutf8", "-man", "-Tutf8", "-ww", "-z"],
                input=text,
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stderr == "", path
