"""Prometheus' text format, version 0.0.4.

    # HELP bascule_partition_log_end_offset The offset that the next message gets.
    # TYPE bascule_partition_log_end_offset gauge
    bascule_partition_log_end_offset{stream="orders",partition="0"} 42

All samples of a metric are adjacent. Labels are formatted once for many samples, because that is most of the cost of a page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bascule.log.disk.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LABEL: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_PLAIN: Final = re.compile(r"[a-zA-Z0-9_.:\-]*").fullmatch  # as most names are
_HELP: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its samples."""
        if self.kind != "histogram":
            return (self.name,)
        return f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count"

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.help.translate(_HELP)}\n# TYPE {self.name} {self.kind}\n"


def escape(value: str) -> str:
    """The text escaped for a quoted label; characters that cannot be encoded are replaced."""
    if _PLAIN(value):
        return value
    return value.translate(_LABEL).encode("utf-8", "replace").decode()


def labels(**values: object) -> str:
    return "{" + ",".join(f'{name}="{escape(str(value))}"' for name, value in values.items()) + "}"


def number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # also True and False
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


class Page:
    """Samples by metric, in the order of the declarations."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._lines: dict[Metric, list[str]] = {metric: [] for metric in metrics}
        self._by_name = {metric.name: lines for metric, lines in self._lines.items()}

    def add(self, name: str, value: float, labels: str = "") -> None:
        # Fast path: most of the thousands of samples are plain integers.
        self._by_name[name].append(f"{name}{labels} {value if type(value) is int else number(value)}\n")

    def add_integers(self, names: tuple[str, ...], values: tuple[int, ...], labels: str) -> None:
        """Add one sample to each of these metrics; for callers with thousands of them."""
        for name, value in zip(names, values, strict=True):
            self._by_name[name].append(f"{name}{labels} {value}\n")

    def add_histogram(self, name: str, histogram: Histogram, labels: str = "") -> None:
        """A sample for each bound, and those of the sum and the count."""
        lines, of_bucket = self._by_name[name], f"{labels[:-1]}," if labels else "{"
        counts = histogram.cumulative()
        for bound, count in zip((*map(number, histogram.bounds), "+Inf"), counts, strict=True):
            lines.append(f'{name}_bucket{of_bucket}le="{bound}"}} {count}\n')
        lines.append(f"{name}_sum{labels} {number(round(histogram.sum, 6))}\n")
        lines.append(f"{name}_count{labels} {counts[-1]}\n")

    def lines(self, name: str) -> list[str]:
        """The lines of a metric, for callers that append thousands of complete samples with line feeds."""
        return self._by_name[name]

    def pieces(self) -> Iterable[bytes]:
        """The page in parts, without metrics that have no samples."""
        for metric, lines in self._lines.items():
            if lines:
                yield (metric.head + "".join(lines)).encode()
