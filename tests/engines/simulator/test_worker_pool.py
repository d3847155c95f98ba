"""A worker that dies is replaced and its job done again; errors come back with tracebacks."""

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwca._support.errors import UserError
from fedwca.engines.simulator.worker_pool import WorkerPool, _Worker
from tests.support import odd_jobs
from tests.support.odd_jobs import OddJob, attempts, do

Pool = WorkerPool[OddJob, float]
ENDS = {
    "kill": "was killed",
    "real time": "exited with code -40",
    "exit": "exited with code 3",
    "memory": "ran out of memory",
    "allocate": "ran out of memory",
}


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool: Pool = WorkerPool(do, 2)
    yield pool
    pool.stop()


def test_a_death_costs_one_attempt_of_one_job(
    pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = {name: OddJob(tmp_path / name, (name,)) for name in ENDS}
    honest = {str(n): OddJob(tmp_path / str(n), seconds=0.2) for n in range(4)}
    results = pool.map({**jobs, **honest})
    assert results.keys() == {*jobs, *honest}
    assert [len(attempts(job)) for job in jobs.values()] == [2] * len(jobs)
    assert [len(attempts(job)) for job in honest.values()] == [1] * len(honest)
    assert len(caplog.messages) == len(ENDS)
    for name, end in ENDS.items():
        assert any(f"client {name} {end}" in message for message in caplog.messages)
    processes = [worker.process for worker in pool._workers]
    assert len(processes) == 2

    processes[0].kill()  # an idle worker
    processes[0].join()
    caplog.clear()
    assert pool.map({"0": honest["0"], "1": honest["1"]}).keys() == {"0", "1"}
    assert len(caplog.messages) == 1
    pool.stop()
    assert not pool._workers
    assert not any(process.is_alive() for process in processes)


def test_after_three_deaths_a_job_runs_alone(
    pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unlucky = OddJob(tmp_path / "unlucky", ("exit",) * 3)
    others = {str(n): OddJob(tmp_path / str(n), seconds=0.5) for n in range(12)}
    results = pool.map({"unlucky": unlucky, **others})
    started, ended = attempts(unlucky)[3], results["unlucky"]
    assert len(attempts(unlucky)) == 4
    for name, job in others.items():
        assert results[name] < started or attempts(job)[0] > ended
    assert len(caplog.messages) == 3


def test_a_job_that_fails_alone_too_names_the_client_and_the_remedy(
    pool: Pool, tmp_path: Path
) -> None:
    hopeless = OddJob(tmp_path / "hopeless", ("memory",) * 9)
    with pytest.raises(UserError, match=r"'hopeless'.*training\.batch_size"):
        pool.map({"hopeless": hopeless})
    assert len(attempts(hopeless)) == 4
    assert not pool._workers


def test_errors_come_back_with_their_traceback(
    pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def raised(trick: str) -> BaseException:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            pool.map({trick: OddJob(tmp_path / trick, (trick,))})
        assert not pool._workers
        return caught.value

    bug, mistake, stubborn = (raised(trick) for trick in ("bug", "mistake", "stubborn"))
    assert type(bug) is KeyError
    assert 'raise KeyError("a bug of ours")' in "".join(traceback.format_exception(bug))
    assert isinstance(mistake, UserError)
    assert (str(mistake), mistake.elsewhere) == ("lower the setting", "the same for others")
    assert (type(stubborn), str(stubborn)) == (RuntimeError, "StubbornError: cannot travel")
    assert not caplog.messages


def test_a_program_that_cannot_be_loaded_raises_its_error(tmp_path: Path) -> None:
    pool: Pool = WorkerPool(do, 2)
    pool._program = pool._program.replace(b"odd_jobs", b"no_jobs_")
    with pytest.raises(ModuleNotFoundError, match="no_jobs_"):
        pool.map({"a": OddJob(tmp_path / "a")})
    assert not pool._workers


# --- signals -----------------------------------------------------------------------------------


def test_ctrl_c_does_not_interrupt_the_start_of_a_process(
    pool: Pool, tmp_path: Path, signal_handlers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = _Worker.__init__, []

    def start_after_interrupt(worker: _Worker) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        start(worker)
        started.append(worker.process)

    monkeypatch.setattr(_Worker, "__init__", start_after_interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.map({"a": OddJob(tmp_path / "a")})
    gc.collect()  # nobody reads the connection any more
    (process,) = started
    process.join(timeout=60)
    assert process.exitcode == 0  # without a traceback


FIRST_PROCESS = """
import signal
from fedwca.engines.simulator.worker_pool import WorkerPool
from tests.support.odd_jobs import blocks_interrupts

pool = WorkerPool(blocks_interrupts, 1)
print(pool.map({"a": None})["a"], blocks_interrupts())
pool.stop()
"""


def test_the_first_process_does_not_receive_interrupts() -> None:
    """Python starts its resource tracker with it, which would unblock interrupts."""
    root = Path(odd_jobs.__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", FIRST_PROCESS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([f"{root}/src", str(root)])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.split() == ["True", "False"], result.stderr
