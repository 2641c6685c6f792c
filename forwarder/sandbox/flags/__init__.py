"""Feature flags and the settings that SDKs request on startup."""
