"""gufo-liftbridge from PyPI: its own tests, unchanged, against our server, started by its own harness."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Final

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

from tests.support.api_client import compile_proto
from tests.support.broker_process import ROOT
from tests.support.external_clients import private_network, python_with, run, source_of

VERSION: Final = "0.2.0"
REQUIREMENTS: Final = (f"gufo-liftbridge=={VERSION}", "grpcio>=1.74", "protobuf>=6.32", "pytest>=8", "pyyaml>=6")
ABOUT_ITS_OWN_REPOSITORY: Final = {"test_ci.py", "test_docs.py", "test_project.py"}
"""They look at files that the source distribution does not have."""

CONFTEST: Final = """
import os
import pytest
from gufo.liftbridge.liftbridge import Liftbridge

@pytest.fixture(scope="session")
def liftbridge():
    address = os.environ.get("SERVER_ADDRESS")
    more = {"broker": address} if address else {}
    with Liftbridge(path=os.environ["SERVER_PATH"], **more) as server:
        yield server
"""


@pytest.fixture(scope="session")
def gufo_python() -> Path:
    return python_with("gufo", REQUIREMENTS)


@pytest.fixture
def server_path(tmp_path: Path) -> Path:
    """The command that pip installed, or one like it."""
    installed = Path(sys.executable).with_name("bascule-server")
    if installed.exists():
        return installed
    script = tmp_path / "bascule-server"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m bascule.broker "$@"\n')
    script.chmod(0o755)
    return script


def test_its_own_tests_pass(gufo_python: Path, server_path: Path, tmp_path: Path) -> None:
    """In a network of its own, so that ports 9292 and 4222 are the real ones; elsewhere on free ports."""
    tests = tmp_path / "tests"
    tests.mkdir()
    for file in (source_of("gufo-liftbridge", VERSION) / "tests").glob("test_*.py"):
        if file.name not in ABOUT_ITS_OWN_REPOSITORY:
            shutil.copy(file, tests)
    (tests / "conftest.py").write_text(CONFTEST)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environ |= {"SERVER_PATH": str(server_path)}
    environ.pop("PYTHONPATH", None)
    network = private_network()
    if not network:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            environ["SERVER_ADDRESS"] = f"127.0.0.1:{free.getsockname()[1]}"
        environ["BASCULE_NATS_EMBEDDED_PORT"] = "0"
    pytest_of_gufo = [
        str(gufo_python),
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tests),
        str(tests),
    ]
    said = run([*network, *pytest_of_gufo], seconds=400, cwd=tests, env=environ)
    assert "test_pub_sub_resume PASSED" in said
    assert "skipped" not in said.splitlines()[-1]


DESCRIPTOR: Final = (
    "import base64, gufo.liftbridge.api_pb2 as api; print(base64.b64encode(api.DESCRIPTOR.serialized_pb).decode())"
)


def fields(message: DescriptorProto) -> dict[str, tuple[int, int, int, str]]:
    """Number, type, label and type name of each field by its name."""
    return {one.name: (one.number, one.type, one.label, one.type_name) for one in message.field}


def values(enum: EnumDescriptorProto) -> dict[str, int]:
    return {one.name: one.number for one in enum.value}


def test_our_proto_has_the_numbers_of_the_published_one(gufo_python: Path) -> None:
    published = FileDescriptorProto.FromString(base64.b64decode(run([str(gufo_python), "-c", DESCRIPTOR], seconds=180)))
    (ours,) = compile_proto().file
    assert ours.package == published.package == "proto"
    mine = {one.name: one for one in ours.message_type}
    for message in published.message_type:
        found = fields(mine[message.name])
        assert {name: found.get(name) for name in fields(message)} == fields(message), message.name
        nested = {one.name: values(one) for one in mine[message.name].enum_type}
        for enum in message.enum_type:
            assert nested[enum.name].items() >= values(enum).items(), enum.name
    enums = {one.name: values(one) for one in ours.enum_type}
    for enum in published.enum_type:
        assert enums[enum.name].items() >= values(enum).items(), enum.name
    methods = {one.name: one for one in ours.service[0].method}
    for method in published.service[0].method:
        same = methods[method.name]
        assert (same.input_type, same.output_type) == (method.input_type, method.output_type)
        assert (same.client_streaming, same.server_streaming) == (method.client_streaming, method.server_streaming)
