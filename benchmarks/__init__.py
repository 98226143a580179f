"""`neuron` against `cpu` on the same machine in the same run: ``python -m benchmarks``.

A group of rows is a function registered with :func:`benchmarks.table.group`, one file per group. Every row is a ratio (or a figure that has
a bar of its own): absolute times say more about the machine than about the backend.
"""
