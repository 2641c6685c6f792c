"""What a user sets: keys and their values, read from a YAML file and the environment, with where each came from."""

from forwarder.config.layers import InvalidConfiguration, Origin, Problem
from forwarder.config.load import DEFAULT_FILE, Loaded, load_part, load_section, load_sections, load_settings
from forwarder.config.settings import Settings

__all__ = [
    "DEFAULT_FILE",
    "InvalidConfiguration",
    "Loaded",
    "Origin",
    "Problem",
    "Settings",
    "load_part",
    "load_section",
    "load_sections",
    "load_settings",
]
