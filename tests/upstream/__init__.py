"""PyTorch's own device-generic test framework on device ``neuron``, from the installed wheel (``torch.testing._internal``).

A *suite* is a file ``<name>_tests.py`` in this folder: generic test classes as PyTorch writes them (``TestCase``, ``@ops``, ``@modules``,
``@optims``, ``@dtypes``...), listed in a module-level ``CLASSES``. The framework instantiates them with
``instantiate_device_type_tests`` for ``cpu`` and for ``neuron`` (``PrivateUse1TestBase``), runs each test on both in worker processes,
and holds ``neuron`` against the CPU: what passes, or fails as PyTorch expects, on the CPU must do so here. A skip counts as a failure
unless the CPU skips too. Where the CPU itself fails, nothing more is asked of ``neuron``.

The classes and tests bear the names they have in PyTorch's own files (``TestCommon.test_out``...), because the databases attach their
skips, expected failures and tolerances to those names.

    python -m tests.upstream --suite opinfo --match test_out_add -n 2
    python -m tests.upstream --report        # everything, and write docs/conformance.md

``expectations.py`` is the one table of what is known to differ, each row with its reason; an unexpected pass fails.
``tests/test_upstream.py`` is the pytest entry.
"""
