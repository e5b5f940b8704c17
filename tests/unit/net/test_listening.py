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
