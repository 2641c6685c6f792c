"""How fast forwarder is and how much memory it takes, beside floors measured in the
same run (docs/maintainers/benchmarks.md).
"""
