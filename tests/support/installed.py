"""An environment as `pip install "bascule[spark]"` makes it: with what the package declares, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bascule.spark.executors.packages import EXTRA, closure
from tests.support.broker_process import ROOT


def spark_install(folder: Path) -> Path:
    """Its Python. Packages are links to those of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for package in ("bascule", "pyspark_bascule"):
        (site / package).symlink_to(ROOT / "src" / package)
    found = closure(EXTRA)
    for distribution in found.values():
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            if top != "__pycache__" and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    (metadata,) = Path(str(found["pyspark"].locate_file(""))).glob("bascule-*.dist-info")
    (site / metadata.name).symlink_to(metadata)
    return folder / "bin" / "python"
