"""Every lowering, executed by XLA:CPU, gives what PyTorch gives.

``python -m tests.lowering --dtype float32`` prints a table over PyTorch's op table; ``test_conformance.py`` is the pytest entry;
``expectations.py`` holds what is known not to lower or to differ.
"""
