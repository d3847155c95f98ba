"""A lost worker is replaced and its job done again; nothing else is."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import odd_jobs
from fedwca.engines import worker
from fedwca.engines.raw_tensor import RawTensor
from fedwca.engines.spawning import undisturbed
from fedwca.engines.workers import Workers
from fedwca.errors import UserError
from fedwca.stopping import StoppedError, stoppable
from odd_jobs import OddJob, attempts, do

TOLD = {
    "kill": "was killed, most likely for want of memory",
    "real time": "ended by signal 40",
    "exit": "ended with code 3",
    "memory": "ran out of memory",
    "allocate": "ran out of memory",
}


class Told(list[str]):
    """Workers, and what they told."""

    def __init__(self, count: int) -> None:
        self.workers: Workers[OddJob, tuple[int, float]] = Workers(do, count, self.append)


@pytest.fixture
def two() -> Iterator[Told]:
    told = Told(2)
    yield told
    told.workers.stop()


def test_every_kind_of_loss_costs_one_attempt_of_one_job(two: Told, tmp_path: Path) -> None:
    jobs = {name: OddJob(tmp_path / name, (name,)) for name in TOLD}
    honest = {str(n): OddJob(tmp_path / str(n), seconds=0.2) for n in range(4)}
    done = two.workers.map({**jobs, **honest})
    assert done.keys() == {*jobs, *honest}
    assert len({attempt for attempt, _ in done.values()}) == len(done)
    assert [len(attempts(job)) for job in jobs.values()] == [2] * len(jobs)
    assert [len(attempts(job)) for job in honest.values()] == [1] * len(honest)
    wanted = [f"a worker process {end}: client {name} is done again" for name, end in TOLD.items()]
    assert sorted(two) == sorted(wanted)
    pids = two.workers.pids()
    assert len(pids) == 2

    os.kill(pids[0], signal.SIGKILL)  # one that has nothing to do
    two.workers._workers[0].process.join()
    two.clear()
    assert two.workers.map({"0": honest["0"], "1": honest["1"]}).keys() == {"0", "1"}
    assert two == [f"a worker process {TOLD['kill']}: another takes its place"]
    two.workers.stop()
    assert not two.workers.pids()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_stopped_worker_is_replaced(
    two: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_STILL", 3)
    stopped = OddJob(tmp_path / "stopped", ("stop",))
    assert two.workers.map({"stopped": stopped}).keys() == {"stopped"}
    assert len(attempts(stopped)) == 2
    assert two == ["a worker process made no progress for 3 s: client stopped is done again"]


def test_one_that_uses_its_processor_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        pid = 1
        killed = False

        def kill(self) -> None:
            self.killed = True

    used = iter([5, *[7] * worker._STILL, 8, *[None] * 2 * worker._STILL, *[9] * worker._STILL, 9])
    monkeypatch.setattr(worker, "_processor_time", lambda pid: next(used))
    watched = worker.Worker.__new__(worker.Worker)
    process = watched.process = Process()  # type: ignore[assignment]
    watched._used, watched._still = -1, 0
    for left in range(4 * worker._STILL + 2, -1, -1):
        assert not process.killed
        watched.look()
        if not left:
            break
    assert process.killed
    assert next(used, "none left") == "none left"


def test_an_answer_that_does_not_fit_into_memory_is_a_lost_worker() -> None:
    class Pipe:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...
        def send_bytes(self, content: bytes) -> None: ...

        def recv_bytes(self) -> bytes:
            raise MemoryError

    jobs: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
    outcomes: queue.SimpleQueue[worker.Outcome] = queue.SimpleQueue()
    jobs.put((7, b""))
    worker._talk(Pipe(), b"", jobs, outcomes)  # type: ignore[arg-type]
    assert outcomes.get_nowait() == (7, None)


def test_after_three_deaths_a_job_has_the_machine_to_itself(two: Told, tmp_path: Path) -> None:
    unlucky = OddJob(tmp_path / "unlucky", ("exit",) * 3)
    others = {str(n): OddJob(tmp_path / str(n), seconds=0.5) for n in range(12)}
    done = two.workers.map({"unlucky": unlucky, **others})
    begun, ended = attempts(unlucky)[3], done["unlucky"][1]
    assert len(attempts(unlucky)) == 4
    for name, job in others.items():
        assert done[name][1] < begun or attempts(job)[0] > ended
    again = [told.removeprefix("a worker process ended with code 3: client ") for told in two]
    assert again == ["unlucky is done again"] * 2 + ["unlucky is tried once more, alone"]


def test_what_dies_alone_too_ends_the_run_in_a_sentence(two: Told, tmp_path: Path) -> None:
    hopeless = OddJob(tmp_path / "hopeless", ("memory",) * 9)
    with pytest.raises(UserError, match=r"'hopeless' ran out of memory, 3 times .* then alone"):
        two.workers.map({"hopeless": hopeless})
    assert len(attempts(hopeless)) == 4
    assert not two.workers.pids()


def test_errors_come_through_with_their_traceback(two: Told, tmp_path: Path) -> None:
    def raised(trick: str) -> BaseException:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            two.workers.map({trick: OddJob(tmp_path / trick, (trick,))})
        assert not two.workers.pids()
        return caught.value

    bug, mistake, stubborn = (raised(trick) for trick in ("bug", "mistake", "stubborn"))
    assert type(bug) is KeyError
    assert 'raise KeyError("a bug of ours")' in "".join(traceback.format_exception(bug))
    assert isinstance(mistake, UserError)
    assert (str(mistake), mistake.elsewhere) == ("lower the setting", "the same for others")
    assert (type(stubborn), str(stubborn)) == (RuntimeError, "StubbornError: cannot travel")
    assert not two


def test_a_program_that_cannot_be_loaded_is_told_as_such(tmp_path: Path) -> None:
    workers: Workers[OddJob, object] = Workers(do, 2)
    workers._blob = workers._blob.replace(b"odd_jobs", b"no_jobs_")
    with pytest.raises(ModuleNotFoundError, match="no_jobs_"):
        workers.map({"a": OddJob(tmp_path / "a")})
    assert not workers.pids()


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor(3.25, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.empty(0, 3, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.arange(12).reshape(3, 4).t()[1:],
    ],
)
def test_values_of_any_type_travel(value: torch.Tensor) -> None:
    back = RawTensor.of(value).tensor()
    assert back.dtype == value.dtype
    assert torch.equal(back, value)
    back.zero_()  # it is the receiver's own


# --- signals -----------------------------------------------------------------------------------

HEARD = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def handlers() -> Iterator[list[object]]:
    """Signals as a program finds them, whatever this one was started by."""
    before = [signal.getsignal(number) for number in HEARD]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield [signal.getsignal(number) for number in HEARD]
    for number, handler in zip(HEARD, before, strict=True):
        signal.signal(number, handler)


def test_signals_wait_while_processes_are_started(handlers: list[object]) -> None:
    done = []

    def start() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            # A thread that does not block it would be enough to make Python take note of it.
            threading.Thread(target=signal.raise_signal, args=(signal.SIGINT,)).start()
            time.sleep(0.05)
            done.append(1)
        done.append(2)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == [1]
    assert [signal.getsignal(number) for number in HEARD] == handlers


FIRST_PROCESS = """
import multiprocessing, signal
from fedwca.engines.spawning import undisturbed
from odd_jobs import tell_blocked

spawn = multiprocessing.get_context("spawn")
ours, theirs = spawn.Pipe()
with undisturbed():
    spawn.Process(target=tell_blocked, args=(theirs,)).start()
print(ours.recv(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_the_very_first_process_does_not_feel_interrupts() -> None:
    """With it Python starts a helper of its own, after which interrupts were let through."""
    told = subprocess.run(
        [sys.executable, "-c", FIRST_PROCESS],
        env={**os.environ, "PYTHONPATH": str(Path(odd_jobs.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.stdout.split() == ["True", "set()"], told.stderr


@pytest.mark.parametrize("number", HEARD)
def test_a_command_is_stopped_once(number: signal.Signals, handlers: list[object]) -> None:
    tidied = []

    @stoppable("stopped")
    def command() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGINT)
            tidied.append(True)

    with pytest.raises(StoppedError, match="stopped") as stopped:
        command()
    assert tidied
    assert stopped.value.code == 128 + number


def test_a_command_that_ends_by_itself_leaves_the_signals_as_they_were(
    handlers: list[object],
) -> None:
    with pytest.raises(UserError), stoppable("stopped"):
        raise UserError("something else")
    assert [signal.getsignal(number) for number in HEARD] == handlers
