"""Shared by all tests: brokers as real processes, how hard Hypothesis tries, and how long a soak lasts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import bascule

pytest_plugins = ["tests.support.broker_fixtures"]

# The same examples in every run of `make test`, so that a red run means a change that broke something; soaks try new ones.
# No deadline, since a shared machine stalls for reasons that are not ours.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile(
    "soak", deadline=None, print_blob=True, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A shell that runs tests in the background has them ignore Ctrl-C, and whatever they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def soak_seconds() -> float:
    """How long a test marked `soak` should go on; `make soak MINUTES=…` sets it."""
    return float(os.environ.get("BASCULE_SOAK_SECONDS", "60"))


@pytest.fixture(autouse=True)
def patient_clients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Clients have the product's defaults, unless the test kills, pauses or overloads servers: then a call may take a minute."""
    if request.node.get_closest_marker("disturbs") is None and not {"chaos", "spark"} & {*request.path.parts}:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for make in (bascule.connect, bascule.blocking.connect):
            patch.setattr(make, "__kwdefaults__", {**(make.__kwdefaults__ or {}), "timeout": 60.0})
        yield
