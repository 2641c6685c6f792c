"""Batch exports: their resources, runs and destinations."""
