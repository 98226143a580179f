"""Graphs on padded sizes: which sizes of a graph can be rounded up without changing its results, and the graph that runs on them.

See docs/dev/buckets.md. :func:`plan.make` decides, :class:`run.Bucketed` runs.
"""
