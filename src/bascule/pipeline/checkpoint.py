"""The folder of a pipeline: Spark's checkpoint, and the state of the pipeline itself.

<checkpoint>/
  pipeline.json      which pipeline it is of, and an id that sinks know it by
  progress.json      what it has done so far, for `bascule pipeline status`
  restarts.json      its last failure, and when it is started again
  stop               asks the running pipeline to stop
  lock               held by the running pipeline
  spark/             Spark's own
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bascule.errors import CheckpointMismatch, StateError, StorageError
from bascule.pipeline.sinks.table import write_document
from bascule.pipeline.spec.pipeline import PipelineSpec

FORMAT: Final = 1


@dataclass(slots=True)
class PipelineCheckpoint:
    path: Path
    _lock: int | None = None

    @classmethod
    def of(cls, spec: PipelineSpec) -> PipelineCheckpoint:
        return cls(Path(spec.checkpoint))

    @property
    def spark_path(self) -> str:
        return str(self.path / "spark")

    @property
    def progress_path(self) -> Path:
        return self.path / "progress.json"

    @property
    def restarts_path(self) -> Path:
        return self.path / "restarts.json"

    @property
    def exists(self) -> bool:
        return (self.path / "pipeline.json").exists()

    def begin(self, spec: PipelineSpec) -> str:
        """The id of the checkpoint, which is made if it is not there. Raises CheckpointMismatch for that of another pipeline."""
        try:
            if not self.exists:
                self._must_be_empty()
                self.path.mkdir(parents=True, exist_ok=True)
                document = {"format": FORMAT, "id": secrets.token_hex(8), "name": spec.name, "state": spec.state_digest}
                write_document(self.path / "pipeline.json", document)
        except OSError as error:
            raise StorageError(f"cannot write the checkpoint {self.path}: {error.strerror}") from error
        return self.check(spec)

    def _must_be_empty(self) -> None:
        """With Spark Connect a pipeline begins with its first batch, when Spark has made its own folder already."""
        there = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
        if there - {"spark"} or _numbers(self.path / "spark" / "commits"):
            raise CheckpointMismatch(
                f"{self.path} is not empty and no checkpoint of a pipeline", hint="give it a folder of its own"
            )

    def check(self, spec: PipelineSpec) -> str:
        """The id of the checkpoint that is there. Raises CheckpointMismatch if the pipeline cannot go on with it."""
        found = self.read()
        if found["name"] != spec.name:
            raise CheckpointMismatch(
                f"{self.path} is the checkpoint of pipeline `{found['name']}`, this one is `{spec.name}`",
                hint="each pipeline has a checkpoint of its own",
            )
        if found["state"] != spec.state_digest:
            raise CheckpointMismatch(
                f"{spec.state_words} of `{spec.name}` was changed since {self.path} was begun: what Spark has remembered is of no use",
                hint="change it back, or begin anew with another checkpoint and other tables",
            )
        return str(found["id"])

    def read(self) -> dict[str, Any]:
        path = self.path / "pipeline.json"
        try:
            found = json.loads(path.read_text("utf-8"))
            if found["format"] != FORMAT:
                raise CheckpointMismatch(f"{path} is of a later version", hint="use the version that wrote it")
            return {name: found[name] for name in ("id", "name", "state")}
        except FileNotFoundError:
            raise CheckpointMismatch(f"{self.path} is no checkpoint of a pipeline", hint="has it run yet?") from None
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointMismatch(f"{path} cannot be read: {error}") from None

    # ── running alone ────────────────────────────────────────────────────────────────────────────

    def hold(self) -> None:
        """One process at a time; it ends with the process, however that ends."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise StateError(f"the pipeline of {self.path} is running", hint="stop it first") from None
        self._lock = handle

    @property
    def is_held(self) -> bool:
        """Whether the pipeline is running on this machine."""
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ── Spark's notes ────────────────────────────────────────────────────────────────────────────

    def offsets(self, source: int = 0) -> dict[str, Any] | None:
        """Where the last batch that is done ends, as the source wrote it; None before the first. A joined stream is source 1."""
        done = _numbers(self.path / "spark" / "commits")
        try:
            found: dict[str, Any] = json.loads(self._planned(max(done))[2 + source])
        except (OSError, ValueError, IndexError):
            return None
        return found

    @property
    def has_open_batch(self) -> bool:
        """Whether Spark has planned a batch and not finished it: the next run repeats it."""
        planned, done = (_numbers(self.path / "spark" / name) for name in ("offsets", "commits"))
        return max(planned, default=-1) > max(done, default=-1)

    def watermark_ms(self, batch: int) -> int | None:
        """The watermark of a batch that Spark has planned; None if there is none."""
        try:
            found = json.loads(self._planned(batch)[1])["batchWatermarkMs"]
        except (OSError, ValueError, IndexError, KeyError):
            return None
        return int(found) or None

    def _planned(self, batch: int) -> list[str]:
        """Spark's note of a batch: a version, its settings and watermark, and where each source ends."""
        return (self.path / "spark" / "offsets" / str(batch)).read_text("utf-8").splitlines()


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()] if folder.is_dir() else []
