"""What can be set, with its type, its default, its bounds and its meaning in one place.

`load` puts a server's configuration together; `resolve` that of one stream. Nothing outside this package reads a file or an
environment variable to find out what it should do.
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
