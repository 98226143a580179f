"""A stand-in for AWS's SDK: a ``neuronx-cc`` (neuronx_cc.py) with the documented interface, so that the whole path runs without the SDK.

It knows what is published about the compiler and nothing else; what passes here is not proven for the real one. ``make standin-sdk`` writes
``build/standin_sdk/env.sh``.
"""
