"""Prometheus' text format 0.0.4 read back, strictly, and by nothing that wrote it: what is allowed but sloppy is refused as well."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|\})')
_VALUE: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|[+-]Inf|NaN")
_ESCAPES: Final = {'\\"': '"', "\\\\": "\\", "\\n": "\n"}
_ESCAPE: Final = re.compile(r'\\["\\n]')

Labels = frozenset[tuple[str, str]]


@dataclass
class Family:
    name: str
    help: str
    kind: str = ""
    samples: dict[Labels, float] = field(default_factory=dict)
    """Of a histogram, how often something was observed."""
    sums: dict[Labels, float] = field(default_factory=dict)
    buckets: dict[Labels, dict[float, float]] = field(default_factory=dict)


class Samples(dict[str, Family]):
    def value(self, name: str, **labels: object) -> float:
        """Of the one sample with exactly these labels."""
        wanted = frozenset((label, str(value)) for label, value in labels.items())
        samples = self[name].samples
        assert wanted in samples, f"{name} has no sample {dict(wanted)}, it has {[dict(one) for one in samples][:20]}"
        return samples[wanted]

    def find(self, name: str, **labels: object) -> dict[Labels, float]:
        """All samples that have these labels; none of a metric that is missing."""
        wanted = {(label, str(value)) for label, value in labels.items()}
        family = self.get(name)
        return {} if family is None else {one: value for one, value in family.samples.items() if wanted <= one}


def parse(page: bytes) -> Samples:
    """Raises AssertionError with the line that is wrong."""
    text = page.decode("utf-8", "strict")
    assert text.endswith("\n"), "the last line has no end"
    found = Samples()
    open_family: Family | None = None
    for line in text[:-1].split("\n"):
        assert line and line == line.strip() and "\r" not in line, repr(line)
        if line.startswith("# HELP "):
            name, _, meaning = line.removeprefix("# HELP ").partition(" ")
            assert _NAME.fullmatch(name) and name not in found and meaning, line
            _end(open_family)
            open_family = found[name] = Family(name, _unescape(meaning, line))
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert open_family is not None and open_family.name == name and not open_family.kind, line
            assert kind in ("counter", "gauge", "histogram"), line
            assert (kind == "counter") == name.endswith("_total"), line
            open_family.kind = kind
        else:
            assert not line.startswith("#"), line
            assert open_family is not None and open_family.kind, line
            if open_family.kind == "histogram":
                _histogram_sample(open_family, line)
            else:
                _sample(open_family, open_family.name, line, open_family.samples)
    _end(open_family)
    return found


def _end(family: Family | None) -> None:
    assert family is None or family.samples, f"{family.name if family else ''} has no samples"
    if family is None or family.kind != "histogram":
        return
    assert family.samples.keys() == family.sums.keys() == family.buckets.keys(), family
    for labels, buckets in family.buckets.items():
        bounds, counts = list(buckets), list(buckets.values())
        assert bounds == sorted(bounds) and bounds[-1] == float("inf") and len(bounds) > 1, family
        assert counts == sorted(counts) and counts[-1] == family.samples[labels], family


def _histogram_sample(family: Family, line: str) -> None:
    for suffix, samples in (("_sum", family.sums), ("_count", family.samples)):
        if line.startswith(family.name + suffix):
            _sample(family, family.name + suffix, line, samples)
            return
    found: dict[Labels, float] = {}
    _sample(family, f"{family.name}_bucket", line, found)
    ((labels, count),) = found.items()
    bound = dict(labels)["le"]
    buckets = family.buckets.setdefault(labels - {("le", bound)}, {})
    assert float(bound) not in buckets, f"{line}: twice"
    buckets[float(bound)] = count


def _sample(family: Family, name: str, line: str, samples: dict[Labels, float]) -> None:
    assert line.startswith(name), f"{line}: stands among the samples of {family.name}"
    at = len(name)
    labels: list[tuple[str, str]] = []
    if line[at] == "{":
        at += 1
        while True:
            match = _LABEL.match(line, at)
            assert match is not None, line
            labels.append((match[1], _unescape(match[2], line)))
            at = match.end()
            if match[3] == "}":
                break
    assert line[at] == " " and _VALUE.fullmatch(line, at + 1), line
    key = frozenset(labels)
    assert len(dict(labels)) == len(labels), f"{line}: a label twice"
    assert key not in samples, f"{line}: twice"
    value = float(line[at + 1 :].replace("Inf", "inf").replace("NaN", "nan"))
    assert family.kind == "gauge" or value >= 0, line
    samples[key] = value


def _unescape(text: str, line: str) -> str:
    assert not re.search(r"\\(?![\"\\n])", _ESCAPE.sub("", text)), line
    return _ESCAPE.sub(lambda match: _ESCAPES[match[0]], text)
