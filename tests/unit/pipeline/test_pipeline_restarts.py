"""When a job that has failed is started again: the policy, the loop around a job, and the file that `status` reads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import (
    BasculeError,
    CheckpointMismatch,
    DataLost,
    DiskFull,
    InvalidConfig,
    OutcomeUnknown,
    PipelineFailed,
    Unavailable,
)
from bascule.pipeline.restarts.loop import Restart, RestartLoop, read_restart
from bascule.pipeline.restarts.policy import FailureCount, RestartPolicy, is_temporary
from bascule.pipeline.spec.pipeline import load

QUICK = RestartPolicy(attempts_max=3, pause_seconds=0.001, pause_seconds_max=0.002)


@given(st.floats(0.001, 100), st.floats(0.001, 1_000), st.integers(1, 10**9))
def test_pauses_double_up_to_the_longest(first: float, longest: float, failures: int) -> None:
    policy = RestartPolicy(pause_seconds=first, pause_seconds_max=longest)
    assert policy.pause_after(1) == first or first > longest
    assert first <= policy.pause_after(failures) <= policy.pause_after(failures + 1) <= max(first, longest)


def test_the_default_bears_an_outage_of_minutes_and_ends() -> None:
    count = FailureCount(RestartPolicy())
    pauses = [count.add(Unavailable("no broker"), has_progressed=False) for _ in range(21)]
    assert pauses[-1] is None
    assert pauses[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert 600 < sum(pause for pause in pauses if pause is not None) < 1_200


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (Unavailable("no broker answers"), True),
        (OutcomeUnknown("no answer"), True),
        (PipelineFailed("Job aborted: ExecutorLostFailure (executor 1 exited)"), True),
        (PipelineFailed("Python worker exited unexpectedly (crashed)"), True),
        (PipelineFailed("division by zero"), False),
        (DataLost("offsets are gone"), False),
        (CheckpointMismatch("of another pipeline"), False),
        (InvalidConfig("wrong"), False),
        (DiskFull("no room"), False),
    ],
)
def test_only_what_may_pass_is_restarted(error: BasculeError, passes: bool) -> None:
    assert is_temporary(error) is passes
    assert (FailureCount(QUICK).add(error, has_progressed=False) is not None) is passes


def test_a_batch_in_between_begins_the_row_anew() -> None:
    count = FailureCount(RestartPolicy(attempts_max=2, pause_seconds=1))
    found = [
        count.add(Unavailable("x"), has_progressed=progressed) for progressed in (False, False, True, False, False)
    ]
    assert found == [1, 2, 1, 2, None]
    assert count.restarts == 4


def test_a_job_is_run_until_it_succeeds_and_its_state_is_on_disk(tmp_path: Path) -> None:
    seen: list[Restart] = []
    loop = RestartLoop(QUICK, tmp_path / "restarts.json", seen.append)
    left = [Unavailable("first"), Unavailable("second")]

    def job() -> None:
        if left:
            raise left.pop(0)
        found = read_restart(tmp_path / "restarts.json")
        assert found is not None and (found.failures, found.error) == (2, "second")
        loop.progressed()

    loop.run(job)
    assert [(one.restarts, one.failures, one.error) for one in seen] == [(1, 1, "first"), (2, 2, "second")]
    found = read_restart(tmp_path / "restarts.json")
    assert found is not None and (found.restarts, found.failures, found.error) == (2, 0, "")


def test_a_failure_too_many_is_raised(tmp_path: Path) -> None:
    calls = []

    def job() -> None:
        calls.append(1)
        raise Unavailable("no broker")

    with pytest.raises(Unavailable):
        RestartLoop(QUICK, tmp_path / "gone" / "restarts.json").run(job)
    assert len(calls) == 4, "once, and three restarts"
    calls.clear()
    with pytest.raises(Unavailable):
        RestartLoop(RestartPolicy(attempts_max=0)).run(job)
    assert len(calls) == 1


def test_a_pause_ends_when_the_job_is_told_to_stop() -> None:
    stop = threading.Event()

    def job() -> None:
        raise Unavailable("no broker")

    RestartLoop(RestartPolicy(pause_seconds=10_000), on_restart=lambda _: stop.set(), stop=stop).run(job)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"restarts": 1}'])
def test_a_state_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "restarts.json").write_text(text)
    assert read_restart(tmp_path / "restarts.json") is None
    assert read_restart(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("", RestartPolicy()),
        ("restart: 0", RestartPolicy(attempts_max=0)),
        ("restart: {attempts: 5, pause: 10s, pause_max: 5m}", RestartPolicy(5, 10, 300)),
    ],
)
def test_the_file_of_a_pipeline_has_the_policy(tmp_path: Path, written: str, wanted: RestartPolicy) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"name: a\nsource: {{stream: orders}}\nsinks: [console]\ncheckpoint: state\n{written}\n")
    assert load(file).restart.policy == wanted


@pytest.mark.parametrize("written", ["-1", "{attempts: many}", "{pause: 0s}", "{pause_max: long}", "{times: 3}"])
def test_a_wrong_policy_is_refused(tmp_path: Path, written: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"name: a\nsource: {{stream: orders}}\nsinks: [console]\ncheckpoint: state\nrestart: {written}\n")
    with pytest.raises(InvalidConfig, match="restart"):
        load(file)
