"""Buffers: hold events until they are settled. Each is a `core.ports.Buffer`, and one contract
suite tests them all.
"""
