"""What the API's handlers work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bascule.broker.authorization import Authorizer
from bascule.broker.controller import Controller
from bascule.broker.cursor_tables import CursorTables
from bascule.broker.cursors import CursorStore
from bascule.broker.groups import GroupCoordinator
from bascule.broker.operations.administration import Administration
from bascule.broker.partitions import Partitions
from bascule.broker.publisher import InFlight, Publisher
from bascule.broker.raft_transport import Bus
from bascule.broker.server_directory import ServerDirectory
from bascule.config.server import ServerConfig


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
