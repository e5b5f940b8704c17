"""What the API's handlers work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bascule.config.sections.server import ServerConfig
from bascule.metadata.controller import Controller
from bascule.metadata.server_directory import ServerDirectory
from bascule.operations.administration import Administration
from bascule.partition.publisher import InFlight, Publisher
from bascule.partition.registry import Partitions
from bascule.raft.transport import Bus
from bascule.readers.cursor_tables import CursorTables
from bascule.readers.cursors import CursorStore
from bascule.readers.groups import GroupCoordinator
from bascule.security.authorization import Authorizer


@dataclass(slots=True, kw_only=True)
class Services:
    config: ServerConfig
    server_id: str
    controller: Controller
    directory: ServerDirectory
    bus: Bus
    partitions: Partitions
    publisher: Publisher
    in_flight: InFlight
    authorizer: Authorizer
    groups: GroupCoordinator
    cursors: CursorStore
    administration: Administration
    cursor_tables: CursorTables = field(default_factory=CursorTables)
    is_cut_off: Callable[[], bool] = lambda: False
    """Whether the other servers have been out of reach for so long that what is known here is not to be relied on."""
