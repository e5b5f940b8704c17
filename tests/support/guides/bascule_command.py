"""The command `bascule` on a reader's machine: hands its arguments to a process that has the installed package in memory.

A server is started as it is, because the reader sends signals to it. A job of Spark that would run until Ctrl-C does what is there now.
"""

import json
import os
import socket
import sys

arguments = sys.argv[1:]
here = os.environ["READER"]
if arguments[:1] == ["server"]:
    os.execv(f"{os.environ['VENV']}/bin/bascule", ["bascule", *arguments])
job = arguments[1] if arguments[:1] == ["pipeline"] and len(arguments) > 1 else ""
if job in ("archive", "latest", "run") and "--once" not in arguments:
    arguments.append("--once")
server = "stay" if job in ("archive", "latest", "run", "sql", "compact") else "fork"
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
    line.connect(f"{here}/{server}")
    request = {
        "page": os.environ["PAGE"],
        "arguments": arguments,
        "directory": os.getcwd(),  # noqa: PTH109 (pathlib takes long to import)
        "environ": dict(os.environ),
    }
    socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2])
    code = line.recv(16)
sys.exit(int(code) if code else 137)
