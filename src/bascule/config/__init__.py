"""What can be set, with its type, its default, its bounds and its meaning in one place.

`load` puts a server's configuration together; `resolve` that of one stream. Nothing outside this package reads a file or an
environment variable to find out what it should do.
"""

from __future__ import annotations

from bascule.config.address import Address
from bascule.config.cluster import ClusterConfig
from bascule.config.key import Key
from bascule.config.loading import Loaded, Setting, load, load_with_sources
from bascule.config.server import KEYS, ServerConfig
from bascule.config.stream import StreamConfig, StreamOverrides, resolve
from bascule.config.streams import Compression, Sync

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
