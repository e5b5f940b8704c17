"""A reader's machine: its own network, processes and files, so that a guide runs as it is written, with its ports and its paths.

    with Machine(tmp_path, installed(tmp_path_factory)) as machine:
        machine.run("bascule", "stream", "list")

It has the programs of this machine, an empty /tmp, /var, /run and /home, a copy of /etc, and nobody else's ports. `bascule` is the one
of the virtual environment; the sources of the checkout are not there. When it is closed, all its processes are killed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from tests.support.small_disk import NotPermitted
from tests.support.waiting import PATIENCE_SECONDS, eventually

ROOT: Final = Path(__file__).resolve().parents[3]
HERE: Final = Path(__file__).parent
HOME: Final = "/home/reader"
BLOCK_SECONDS: Final = 400.0

PREPARE: Final = """
set -e
root=$1 checkout=$2
shift 2
mount --make-rprivate /
mount -t tmpfs -o mode=755 reader "$root"
for entry in /*; do
    case $entry in /tmp | /var | /run | /home | /etc | /proc) continue ;; esac
    if [ -L "$entry" ]; then
        cp -P "$entry" "$root$entry"
    elif [ -d "$entry" ]; then
        mkdir "$root$entry"
        mount --rbind "$entry" "$root$entry"
    fi
done
mkdir -p "$root/tmp" "$root/var/lib" "$root/var/log" "$root/var/tmp" "$root/run" "$root/home/reader" "$root/proc"
chmod 1777 "$root/tmp" "$root/var/tmp"
cp -a /etc "$root/etc" 2>&- || true
mount -t proc proc "$root/proc"
for place in "$@"; do
    if [ ! -d "$root$place" ]; then
        mkdir -p "$root$place"
        mount --rbind "$place" "$root$place"
    fi
done
if [ -d "$root$checkout/src" ]; then
    mount -t tmpfs -o mode=755 hidden "$root$checkout/src"
fi
ip link set lo up
exec chroot "$root" sh -c 'echo ready; while :; do sleep 3600; done'
"""


class Machine:
    """`folders` are there too; `environ` is set for all commands."""

    def __init__(
        self,
        directory: Path,
        venv: Path,
        *,
        folders: Sequence[Path] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._venv = venv
        self._folders = folders
        self._is_root = os.geteuid() == 0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._hatcheries: list[subprocess.Popen[bytes]] = []
        self._pid = 0
        self._files = 0
        self._handle: int | None = None
        path = [directory / "bin", venv / "bin", Path(sys.prefix) / "bin"]
        self.environ = {
            "PATH": ":".join([*map(str, path), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]),
            "HOME": HOME,
            "LANG": "C.UTF-8",
            "READER": str(directory),
            "VENV": str(venv),
            "PAGE": "",
            **(environ or {}),
        }

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        (self.directory / "root").mkdir()
        (self.directory / "bin").mkdir()
        for name in ("hatchery.py", "bascule_command.py"):
            shutil.copy(HERE / name, self.directory / name)
        command = self.directory / "bin" / "bascule"
        command.write_text(
            f'#!/bin/sh\nexec "{self._venv}/bin/python" -SE "{self.directory}/bascule_command.py" "$@"\n'
        )
        command.chmod(0o755)
        user = [] if self._is_root else ["--user", "--map-root-user"]
        spaces = [*user, "--mount", "--net", "--pid", "--fork", "--kill-child"]
        places = [sys.base_prefix, sys.prefix, str(self._venv), str(self.directory), *map(str, self._folders)]
        self._keeper = subprocess.Popen(
            ["unshare", *spaces, "sh", "-c", PREPARE, "sh", str(self.directory / "root"), str(ROOT), *places],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None and self._keeper.stderr is not None
        if self._keeper.stdout.readline() != b"ready\n":
            reason = self._keeper.stderr.read().decode().strip()
            self.close()
            raise NotPermitted(reason)
        (task,) = Path(f"/proc/{self._keeper.pid}/task").iterdir()
        self._pid = int((task / "children").read_text().split()[0])
        self._hatch("fork")
        return self

    def _hatch(self, kind: str) -> None:
        arguments = [f"{self._venv}/bin/python", f"{self.directory}/hatchery.py", f"{self.directory}/{kind}", kind]
        self._hatcheries.append(self.start_process(arguments, self.directory / f"{kind}.log"))
        eventually(lambda: self._listens(kind), f"the {kind} hatchery listens", PATIENCE_SECONDS)

    def _listens(self, kind: str) -> bool:
        assert all(one.poll() is None for one in self._hatcheries), (self.directory / f"{kind}.log").read_text()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, suppress(OSError):
            line.connect(self._near(kind))
            return True
        return False

    def _near(self, kind: str) -> str:
        """Short enough for a socket: its directory may have a long name."""
        if self._handle is None:
            self._handle = os.open(self.directory, os.O_PATH)
        return f"/proc/self/fd/{self._handle}/{kind}"

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()  # its child is the first process of the machine: all others die with it
            self._keeper.wait()
            for stream in (self._keeper.stdout, self._keeper.stderr):
                if stream is not None:
                    stream.close()
        for one in self._hatcheries:
            one.wait()
        if self._handle is not None:
            os.close(self._handle)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    # ── commands ─────────────────────────────────────────────────────────────────────────────────

    def _inside(self, directory: str = HOME) -> list[str]:
        user = [] if self._is_root else ["--user", "--preserve-credentials"]
        places = ["--root", f"--wd=/proc/{self._pid}/root"]
        inside = ["nsenter", "--target", str(self._pid), *user, "--mount", "--net", "--pid", *places]
        return [*inside, "sh", "-c", 'cd "$0" && exec "$@"', directory]

    def start_process(
        self,
        arguments: list[str],
        log: Path,
        *,
        directory: str = HOME,
        environ: dict[str, str] | None = None,
        pipes: bool = False,
    ) -> subprocess.Popen[bytes]:
        """A process in a session of its own. With `pipes` its stdin and stdout are pipes."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._inside(directory), "setsid", *arguments],
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                cwd="/",
                env=environ or self.environ,
            )

    def run(self, *arguments: str, timeout: float = BLOCK_SECONDS) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._inside(), *arguments],
            cwd="/",
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def python(self, code: str, *, file: str, page: str, directory: str) -> tuple[int, str]:
        """Run it in the interpreter of this page; its exit code and output."""
        if len(self._hatcheries) == 1:
            self._hatch("stay")
        request = {"page": page, "code": code, "file": file, "directory": directory, "environ": self.environ}
        with self.new_file("python").open("w+b") as output, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(BLOCK_SECONDS)
            line.connect(self._near("stay"))
            with Path(os.devnull).open("rb") as nothing:
                descriptors = [nothing.fileno(), output.fileno(), output.fileno()]
                socket.send_fds(line, [json.dumps(request).encode()], descriptors)
            answered = line.recv(16)
            output.seek(0)
            return int(answered or b"137"), output.read().decode("utf-8", "replace")

    def with_spark(self) -> None:
        """Have the process that Spark lives in."""
        if len(self._hatcheries) == 1:
            self._hatch("stay")

    def new_file(self, name: str) -> Path:
        """A path that both sides know."""
        self._files += 1
        return self.directory / f"{self._files:03}-{name}"


class Terminal:
    """A shell, in which the blocks of a page are typed one after the other."""

    def __init__(self, machine: Machine, page: str, directory: str) -> None:
        self._machine = machine
        self._log = machine.new_file(f"{page}.log")
        self._log.touch()
        environ = {**machine.environ, "PAGE": page}
        machine.run("mkdir", "-p", directory)
        self._bash = machine.start_process(
            ["bash", "--norc", "-euo", "pipefail"], self._log, directory=directory, environ=environ, pipes=True
        )
        self._shown = 0
        self._type("echo $$")
        self._group = self._said()

    @property
    def _lines(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._bash.stdin is not None and self._bash.stdout is not None
        return self._bash.stdin, self._bash.stdout

    def _type(self, text: str) -> None:
        self._lines[0].write(f"{text}\n".encode())
        self._lines[0].flush()

    def _said(self) -> str:
        """The next line, or nothing if the shell has left."""
        ready, _, _ = select.select([self._lines[1]], [], [], BLOCK_SECONDS)
        assert ready, f"a block takes longer than {BLOCK_SECONDS:g} s:\n{self._output()}"
        return self._lines[1].readline().decode().strip()

    def _output(self) -> str:
        text = self._log.read_bytes()
        new, self._shown = text[self._shown :], len(text)
        return new.decode("utf-8", "replace")

    def run(self, code: str) -> tuple[bool, str]:
        """Whether it succeeded, and its output."""
        script = self._machine.new_file("block.sh")
        script.write_text(code)
        self._type(f'. "{script}" </dev/null >>"{self._log}" 2>&1; echo done')
        return self._said() == "done", self._output()

    def close(self) -> None:
        """Also what it started in the background."""
        self._machine.run("kill", "-9", "--", f"-{self._group}")
        for stream in self._lines:
            with suppress(BrokenPipeError):
                stream.close()
        self._bash.wait()


class Server:
    """A block whose last command is a server: it has a terminal of its own and stays there."""

    def __init__(self, machine: Machine, code: str, directory: str) -> None:
        self._machine = machine
        self._code = code
        self._directory = directory
        self._log = machine.new_file("server.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._group = ""

    def start(self) -> None:
        script = self._machine.new_file("server.sh")
        script.write_text(self._code)
        self._machine.run("mkdir", "-p", self._directory)
        arguments = ["bash", "-euo", "pipefail", "-c", 'echo $$; exec > "$1" 2>&1; . "$0"', str(script), str(self._log)]
        self._process = self._machine.start_process(arguments, self._log, directory=self._directory, pipes=True)
        assert self._process.stdout is not None
        self._group = self._process.stdout.readline().decode().strip()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._machine.run("bascule", "stream", "list").returncode:
            assert self._process.poll() is None, f"the server has left:\n{self._log.read_text()}"
            assert time.monotonic() < deadline, f"the server does not serve:\n{self._log.read_text()}"
            time.sleep(0.3)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._machine.run("kill", f"-{number}", "--", f"-{self._group}")
            self._process.wait(PATIENCE_SECONDS)
            # The shell is gone first; its server hands over and closes its logs.
            eventually(
                lambda: self._machine.run("kill", "-0", "--", f"-{self._group}").returncode, "the server is gone"
            )
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process = None
