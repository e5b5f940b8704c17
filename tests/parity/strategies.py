"""How the Hypothesis tests draw: one shrinking `random.Random`, so that they and the fuzzers share their generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

RANDOMS: Final = st.randoms(use_true_random=False)


def examples(count: int) -> Callable[[Any], Any]:
    """Time limits on a single example only make a loaded machine fail."""
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
