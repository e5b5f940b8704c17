"""The settings of servers and streams: type, default, bounds and description of each in one place.

`load` returns the configuration of a server, `resolve` that of a stream. Only this package reads configuration files and
environment variables.
"""

from __future__ import annotations

from bascule.config.loading import Loaded, Setting, load, load_with_sources
from bascule.config.sections.cluster import ClusterConfig
from bascule.config.sections.server import KEYS, ServerConfig
from bascule.config.sections.streams import Compression, Sync
from bascule.config.stream import StreamConfig, StreamOverrides, resolve
from bascule.config.values.address import Address
from bascule.config.values.key import Key

__all__ = [
    "KEYS",
    "Address",
    "ClusterConfig",
    "Compression",
    "Key",
    "Loaded",
    "ServerConfig",
    "Setting",
    "StreamConfig",
    "StreamOverrides",
    "Sync",
    "load",
    "load_with_sources",
    "resolve",
]
