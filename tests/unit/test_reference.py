"""docs/reference is what the code says."""

import pytest

from tests import reference


@pytest.mark.parametrize("page", reference.PAGES)
def test_a_page_is_that_of_the_code(page: str):
    """After a change of a command, the schema or a code: `python -m tests.reference`."""
    assert (reference.FOLDER / page).read_text(encoding="utf-8") == reference.text(page)
