"""The generated message classes are what the .proto files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GENERATED = ROOT / "src" / "bascule" / "proto"
OWN_POOL = ("health_pb2.py", "reflection_pb2.py")
"""Other packages declare the same names in the default pool; see the Makefile."""


@pytest.mark.parametrize("source", sorted((ROOT / "proto").glob("*.proto")), ids=lambda path: path.name)
def test_the_generated_code_is_up_to_date(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(source.parent)]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(source)]
    subprocess.run(command, check=True, timeout=60)
    for fresh in tmp_path.iterdir():
        expected = fresh.read_text()
        if fresh.name in OWN_POOL:
            expected = expected.replace("_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()")
        assert (GENERATED / fresh.name).read_text() == expected, "run `make proto`"
