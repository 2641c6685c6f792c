"""Tests of `forwarder.config`."""
