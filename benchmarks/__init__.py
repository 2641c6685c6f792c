"""How fast forwarder is and how much memory it takes, beside floors measured in the same run. The method is in docs/benchmarks.md."""
