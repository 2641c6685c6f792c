"""The object store of these tests."""

from tests.support.buckets import bucket, object_store

__all__ = ["bucket", "object_store"]
