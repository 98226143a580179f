"""Random programs compiled and eager: the same bits, first recorded, then replayed, at one size and at two."""

import pytest

from tests.compile.fuzz import failures


def test_a_few_programs():
    found = failures(range(8))
    assert not found, "\n".join(found)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_programs():
    found = failures(range(8, 400))
    assert not found, "\n".join(found)
