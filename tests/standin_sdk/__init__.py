"""A stand-in for AWS's SDK, so that the whole path runs without it: a ``neuronx-cc`` (neuronx_cc.py) and a ``libnrt.so.1`` (libnrt/), both with
the documented interfaces. HLO is executed by XLA on the CPU (executor.py).

It knows what is published about compiler and runtime and nothing else; what passes here is not proven for the real ones. ``make standin-sdk``
writes ``build/standin_sdk/env.sh``.
"""
