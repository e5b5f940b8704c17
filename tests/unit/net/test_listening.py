"""The listening socket of a broker: from its supervisor, or bound before the parts are imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bascule.config import Address
from bascule.errors import OperatorError
from bascule.net.listening import take_listening_socket


def test_the_port_is_bound_before_the_parts_are_imported() -> None:
    code = "import sys, bascule.broker.main; assert 'bascule.broker.broker' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_variables_for_another_process_are_ignored_and_removed() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "OTHER": "y"}
    with take_listening_socket(Address("127.0.0.1", 0), environ) as found:
        assert found.getsockname()[0] == "127.0.0.1"
    assert environ == {"OTHER": "y"}


def test_several_sockets_are_refused() -> None:
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}
    with pytest.raises(OperatorError, match="hands over 2 sockets"):
        take_listening_socket(Address("127.0.0.1", 0), environ)


def test_the_port_of_a_server_listens_before_its_parts_are_imported() -> None:
    """go-liftbridge gives up for good after a quarter of a second of refused connections."""
    code = (
        "import sys\n"
        "from bascule.net import listening\n"
        "def stop(*_):\n"
        "    late = ('bascule.cli.main', 'bascule.log', 'bascule.raft', 'bascule.broker.broker', 'typer')\n"
        "    print([name for name in late if name in sys.modules])\n"
        "    sys.exit()\n"
        "listening.take_listening_socket = stop\n"
        "sys.argv[1:] = ['server', '--port', '0']\n"
        "from bascule.cli.entry import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
