"""Ranks that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.distributed.workers import Ranks


@pytest.fixture(scope="session")
def ranks2() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def ranks4() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.close()
