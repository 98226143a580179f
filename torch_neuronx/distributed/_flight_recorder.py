"""The last collectives of this process."""

from __future__ import annotations

from typing import Any

from torch_neuronx import _C


def flight_recorder() -> list[dict[str, Any]]:
    """The last operations of all groups of backend ``neuron``, oldest first; as many as ``TORCH_FR_BUFFER_SIZE`` says (2000).

    Each is a dict: ``id`` in the process, ``group``, ``sequence`` in the group, ``operation`` ("ALLREDUCE SUM"), ``dtype``, ``bytes`` that
    this rank puts in, ``peer`` (rank in the group, of send and recv, else None), ``site`` ("train.py:12", the user's line; "" on threads
    without Python), ``state`` ("scheduled", "started", "completed" or "failed"), and ``scheduled``, ``started``, ``ended`` in seconds since
    the epoch, None while it has not happened.
    """
    return _C._flight_records()
