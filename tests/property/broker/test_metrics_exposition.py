"""What is written as Prometheus' text is read back the same, whatever streams and cursors are called."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.broker.metrics.catalogue import METRICS
from bascule.broker.metrics.exposition import Metric, Page, labels, number
from bascule.log.disk.histogram import Histogram
from tests.support.prometheus_text import parse

ONE = Metric("one_total", "counter", 'A "help" with \\ and\na line feed.', ("a", "b"))
TWO = Metric("two", "gauge", "Two.", ())
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20)


def written(page: Page) -> bytes:
    return b"".join(page.pieces())


@given(st.dictionaries(st.tuples(TEXTS, TEXTS), st.integers(0, 1 << 63), min_size=1, max_size=10))
def test_labels_and_values_come_back(samples: dict[tuple[str, str], int]) -> None:
    page = Page((ONE, TWO))
    page.add("two", 5)
    for (first, second), value in samples.items():
        page.add("one_total", value, labels(a=first, b=second))
    found = parse(written(page))
    assert list(found) == ["one_total", "two"]  # as they are declared, not as they were added
    assert found["one_total"].help == ONE.help
    assert found.value("two") == 5
    for (first, second), value in samples.items():
        assert found.value("one_total", a=first, b=second) == float(value)


@given(st.one_of(st.integers(), st.floats(), st.booleans()))
def test_every_number_comes_back(value: float) -> None:
    page = Page((TWO,))
    page.add("two", value)
    found = parse(written(page)).value("two")
    assert found == float(value) or (math.isnan(found) and math.isnan(value))


def test_what_no_number_can_be_has_its_own_words() -> None:
    assert [number(value) for value in (math.inf, -math.inf, math.nan, True, 1.5)] == [
        "+Inf",
        "-Inf",
        "NaN",
        "1",
        "1.5",
    ]


def test_half_a_character_does_not_spoil_the_page() -> None:
    page = Page((ONE,))
    page.add("one_total", 1, labels(a="\ud800", b=""))
    assert parse(written(page)).value("one_total", a="?", b="") == 1


def test_a_metric_without_samples_is_left_out() -> None:
    page = Page((ONE, TWO))
    page.add("two", 1)
    assert list(parse(written(page))) == ["two"]


def test_every_metric_is_declared_as_the_format_wants_it() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        page = Page((metric,))
        of_sample = labels(**dict.fromkeys(metric.labels, "x")) if metric.labels else ""
        if metric.kind == "histogram":
            page.add_histogram(metric.name, Histogram(), of_sample)
        else:
            page.add(metric.name, 1, of_sample)
        found = parse(written(page))
        assert found[metric.name].kind == metric.kind
        assert metric.name.startswith(("bascule_", "process_"))
        assert metric.help.endswith(".")


@pytest.mark.parametrize(
    "bad",
    [
        b"a 1\n",
        b"# TYPE a gauge\na 1\n",
        b"# HELP a A.\n# TYPE a gauge\n",
        b"# HELP a A.\n# TYPE a gauge\na 1",
        b"# HELP a A.\n# TYPE a gauge\na 1\na 1\n",
        b"# HELP a A.\n# TYPE a gauge\na 1\nb 1\n",
        b'# HELP a A.\n# TYPE a gauge\na{x="\\q"} 1\n',
        b'# HELP a A.\n# TYPE a gauge\na{x="1"y="2"} 1\n',
        b"# HELP a A.\n# TYPE a gauge\na 1 \n",
        b"# HELP a A.\n# TYPE a counter\na 1\n",
        b"# HELP a_total A.\n# TYPE a_total counter\na_total -1\n",
        b"# HELP a A.\n# TYPE a gauge\na one\n",
    ],
)
def test_the_reader_is_strict(bad: bytes) -> None:
    """Else it would prove nothing."""
    with pytest.raises(AssertionError):
        parse(bad)
