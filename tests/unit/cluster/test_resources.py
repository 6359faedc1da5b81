"""Extended resources counted by hand."""

import pytest

from gpunode.commands.label import parse_counts as wish
from gpunode.errors import UsageError
from tests import tables


def test_counts_are_read():
    """By name; to take one away the name is enough."""
    read = wish(["example.com/fpga=2", "nvidia.com/gpu=1"], remove=False)
    assert read == {"example.com/fpga": 2, "nvidia.com/gpu": 1}
    assert wish(["example.com/fpga"], remove=True) == {"example.com/fpga": None}


@tables.rows("resources-not-counted")
def test_what_the_api_server_would_not_count_is_refused(word: str, remove: bool):
    """With an example, before anything is asked."""
    with pytest.raises(UsageError) as caught:
        wish([word], remove=remove)
    assert "example.com/fpga" in caught.value.hint
