"""A stand-in for AWS's SDK, so that the whole path runs without it.

A ``neuronx-cc`` (neuronx_cc.py) and a ``libnrt.so.1`` (libnrt/) with the documented interfaces; XLA on the CPU executes the HLO
(executor.py). They know what is published about compiler and runtime and nothing else; what passes here is not proven for the real ones.
``make standin-sdk`` writes ``build/standin_sdk/env.sh``.
"""
