"""How the Hypothesis tests draw: one shrinking `random.Random`, so that they and the fuzzers share their generators."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

RANDOMS: Final = st.randoms(use_true_random=False)
IS_SOAK: Final = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def examples(count: int) -> Callable[[Any], Any]:
    """So many that are new in a soak, a third of that in other runs, which try the same ones every time. Time limits on a
    single example only make a loaded machine fail."""
    return settings(
        max_examples=count if IS_SOAK else count // 3,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
