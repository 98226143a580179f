"""``nki.collectives``: exchange between ranks; a rank is one logical core."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class ReplicaGroup:
    """Lists of ranks that exchange among themselves; a rank is in at most one list.

    Raises:
        ValueError: a rank is in two lists, or twice in one.
    """

    rank_lists: list[list[int]]

    def __post_init__(self) -> None:
        ranks = [rank for ranks in self.rank_lists for rank in ranks]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"the rank lists of a replica group must not overlap, got {self.rank_lists}")
