"""Tests of the outage drill."""
