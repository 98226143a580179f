"""PyTorch's own op table (``op_db``) run on the CPU and on device ``neuron``, over all samples, forward and gradient.

``python -m tests.opinfo --dtype float32`` prints a table; ``tests/test_opinfo.py`` is the pytest entry; ``expectations.py`` holds what
is known to differ.
"""
