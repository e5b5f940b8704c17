"""A read that waits for a server which has stopped without a word: Arrow would wait for ever, so the read is ended under it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bascule.errors import Unavailable


class Opening:
    """Something that may never return, done by a thread that nobody has to wait for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_given_up = False
        self._made: Any = None
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="bascule flight open", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            made = self._work()
        except Exception as error:
            self._failure = error
            return
        with self._lock:
            self._made = made
            if self._is_given_up:
                made.cancel()

    def wait(self, seconds: float) -> Any:
        """What was made; None when it takes longer: then it is cancelled when it is made after all. Raises what the work raised."""
        self._thread.join(seconds)
        if self._failure is not None:
            raise self._failure
        with self._lock:
            self._is_given_up = self._made is None
            return self._made


class Stalls:
    """One thread for all reads of a connection, started with the first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[int, tuple[float, Any]] = {}
        self._ended: set[int] = set()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def watch(self, reader: Any) -> Iterator[None]:
        """The reader is cancelled when what is done with it takes too long: then Unavailable is raised."""
        key = id(reader)
        with self._news:
            self._waiting[key] = (time.monotonic() + self._seconds, reader)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="bascule flight stalls", daemon=True)
                self._thread.start()
        try:
            yield
        except Exception:
            if key in self._ended:
                raise Unavailable(f"the server has sent nothing for {self._seconds:g} s") from None
            raise
        finally:
            with self._news:
                self._waiting.pop(key, None)
                self._ended.discard(key)

    def _run(self) -> None:
        with self._news:
            while not self._closed:
                now = time.monotonic()
                for key, (until, reader) in list(self._waiting.items()):
                    if until <= now and key not in self._ended:
                        self._ended.add(key)
                        reader.cancel()
                self._news.wait(min(1.0, self._seconds / 4))

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
