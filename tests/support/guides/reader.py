"""A reader, who follows pages of the documentation on a machine of its own.

Python is typed into one interpreter for each page, shell commands into one terminal for each page, servers into terminals that stay
open. Each page has a folder of its own, but those with Spark share one, because its Java stays in the folder where it started. Marks in
the pages say what is left out, see pages.py.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from pathlib import Path
from typing import Final

from tests.support.guides.machine import HOME, Machine, Server, Terminal
from tests.support.guides.pages import Block, blocks_of_page
from tests.support.waiting import eventually

_SPARK: Final = re.compile(r"bascule pipeline |bascule\.spark|\bspark\.")
_SERVER: Final = re.compile(r"^bascule server\b[^&|]*$")

OWN_STREAMS: Final = """
for name in customers shop-eu shop-us; do bascule stream create "$name" --subject "shop.$name.created"; done
for name in lamps chairs; do bascule publish customers "$name" --key "$name"; done
bascule publish shop-eu lamp
bascule publish shop-us desk
"""
"""What a reader of the guides to archives and pipelines has."""

CLUSTER: Final = """
mkdir -p /var/lib/cluster
cat > /var/lib/cluster/{name}.yaml <<END
listen: 127.0.0.1:{port}
clustering:
  namespace: production
  server.id: {name}
  min.insync.replicas: 2
  {members}
nats.servers: [nats://127.0.0.1:4222]
data.dir: /var/lib/cluster/{name}
cursors.stream.partitions: 3
END
while true; do bascule server -c /var/lib/cluster/{name}.yaml || [ $? != 4 ] || exit 4; done
"""
"""A server of operating-a-cluster.md, on one machine, under a supervisor. It stays away when it was removed from the cluster."""


class Reader:
    """Follows pages on a machine."""

    def __init__(self, machine: Machine, *, has_cluster: bool = False) -> None:
        self.machine = machine
        self.followed: list[str] = []
        self._has_cluster = has_cluster
        self._server: Server | None = None
        """The one of the first page that starts one: the other pages use it."""

    def follow(self, page: Path) -> str:
        """Type every block of a page; what they show."""
        blocks = [block for block in blocks_of_page(page) if block.is_run and self._is_due(block)]
        if not blocks:
            return ""
        name, directory = page.stem, f"{HOME}/{'spark' if needs_spark(page) else page.stem}"
        if name == "spark":
            assert self.machine.run("sh", "-ec", OWN_STREAMS).returncode == 0
        terminal, own, shown = Terminal(self.machine, name, directory), None, []
        try:
            for block in blocks:
                if block.is_shell and _is_server(block.code):
                    own = self._serve(block, directory) or own
                elif "while the broker is killed" in block.marks:
                    shown.append(self._disturbed(block, name, directory))
                elif "until stopped" in block.marks:
                    shown.append(self._interrupted(block, name, directory))
                else:
                    shown.append(self._typed(block, terminal, name, directory))
        finally:
            terminal.close()
            if own is not None:
                own.stop()
                assert self._server is not None
                self._server.start()
        self.followed.append(name)
        return "".join(shown)

    def _is_due(self, block: Block) -> bool:
        if block.language != "python" and not block.is_shell:
            return False
        if self._has_cluster:
            return not (block.is_shell and _is_server(block.code))
        return "with a cluster" not in block.marks

    def _typed(self, block: Block, terminal: Terminal, name: str, directory: str) -> str:
        if block.is_shell:
            if "bascule pipeline" in block.code:
                self.machine.with_spark()
            is_done, output = terminal.run(block.code)
        else:
            code, output = self.machine.python(block.code, file=str(block), page=name, directory=directory)
            is_done = code == 0
        assert is_done, f"{block}\n{block.code}\n{output}"
        if block.language == "python" and re.search(r"connect\(|read_table\(", block.code):
            assert output, f"{block}: a block that prints nothing shows nothing"
        return output

    def _serve(self, block: Block, directory: str) -> Server | None:
        """Start the server of a page. The ports of a reader are in use already, except on the first page that starts one."""
        server = Server(self.machine, block.code, directory)
        if self._server is None:
            self._server = server
            server.start()
            return None
        self._server.stop()
        server.start()
        return server

    def _disturbed(self, block: Block, name: str, directory: str) -> str:
        """The page asks for a kill -9 and a new start, while the block runs."""
        if self._server is None:
            return ""
        result: list[tuple[int, str]] = []
        run = threading.Thread(
            target=lambda: result.append(
                self.machine.python(block.code, file=str(block), page=name, directory=directory)
            )
        )
        run.start()
        time.sleep(0.5)
        self._server.stop(signal.SIGKILL)
        self._server.start()
        run.join()
        ((code, output),) = result
        assert code == 0, f"{block}\n{output}"
        return output

    def _interrupted(self, block: Block, name: str, directory: str) -> str:
        log, script = self.machine.new_file("until-stopped.log"), self.machine.new_file("until-stopped")
        script.write_text(block.code)
        log.touch()
        program = ["bash"] if block.is_shell else ["python", "-u"]
        environ = {**self.machine.environ, "PAGE": name}
        self.machine.run("mkdir", "-p", directory)
        process = self.machine.start_process([*program, str(script)], log, directory=directory, environ=environ)
        eventually(lambda: log.stat().st_size or process.poll() is not None, f"{block} shows something")
        assert process.poll() is None, f"{block}\n{log.read_text()}"
        self.machine.run("pkill", "-INT", "-f", str(script))
        process.wait(60)
        return log.read_text()

    def start_cluster(self) -> None:
        """Three servers on a nats-server."""
        self._start("nats", "exec nats-server -a 127.0.0.1 -p 4222")
        for number in (1, 2, 3):
            self._launch(number, "raft.bootstrap.peers: [broker-1, broker-2, broker-3]")
        eventually(lambda: self._servers() == 3, "the servers are a cluster")

    def start_another_server(self) -> None:
        """A fourth server, which joins."""
        self._launch(4, "")
        eventually(lambda: self._servers() == 4, "the new server has joined")

    def _launch(self, number: int, members: str) -> None:
        code = CLUSTER.format(name=f"broker-{number}", port=9282 + 10 * number, members=members)
        self._start(f"broker-{number}", code)

    def _start(self, name: str, code: str) -> None:
        self.machine.start_process(["bash", "-c", code], self.machine.directory / f"{name}.log")

    def _servers(self) -> int:
        """Servers of a healthy cluster."""
        found = self.machine.run("bascule", "cluster", "status", "--json")
        return len(json.loads(found.stdout)["brokers"]) if found.returncode == 0 else 0


def needs_spark(page: Path) -> bool:
    return any(_SPARK.search(block.code) for block in blocks_of_page(page) if block.is_run)


def _is_server(code: str) -> bool:
    commands = [line for line in re.sub(r"\\\n", " ", code).splitlines() if line.strip() and line.strip()[0] != "#"]
    return bool(commands) and _SERVER.match(re.sub(r"\s#.*", "", commands[-1])) is not None
