"""Random programs compiled and eager: the same bits, first recorded, then replayed, at one size and at two."""

import pytest

from tests.compile.fuzz import adaptive_difference, failures


def test_a_few_programs():
    found = failures(range(8))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("seed", [129, 173, 443, 1574, 1724])
def test_temporaries_of_a_window_that_are_written_again_and_copied(seed):
    assert adaptive_difference(seed) is None


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_programs():
    found = failures(range(8, 400))
    assert not found, "\n".join(found)
