"""A command of a shell whose work a copy of the fork server does, see fork_server.py. Imports little, since it is started often.

python -I -S forked_tool.py <address of the server> <module> <argument>…
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys

_NUMBER = struct.Struct("<q")


def main(address: str, module: str, *arguments: str) -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(address)
    request = {
        "module": module,
        "arguments": arguments,
        "environ": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109 (pathlib takes as long to import as all the rest)
        "handles": None,
    }
    socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2])
    _, handles, _, _ = socket.recv_fds(line, _NUMBER.size, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: signal.pidfd_send_signal(handles[0], number))
    (code,) = _NUMBER.unpack(line.recv(_NUMBER.size))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
