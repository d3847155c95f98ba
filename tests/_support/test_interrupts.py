"""A signal stops a command once, and its cleanup is not interrupted."""

import signal

import pytest

from fedwca._support.errors import UserError
from fedwca._support.interrupts import StoppedError, stop_on_signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_is_stopped_once(number: signal.Signals, signal_handlers: list[object]) -> None:
    cleaned_up = []

    @stop_on_signal("stopped")
    def command() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGINT)
            cleaned_up.append(True)

    with pytest.raises(StoppedError, match="stopped") as stopped:
        command()
    assert cleaned_up
    assert stopped.value.code == 128 + number


def test_a_command_restores_signal_handlers_at_its_end(
    signal_handlers: list[object],
) -> None:
    with pytest.raises(UserError), stop_on_signal("stopped"):
        raise UserError("something else")
    assert [signal.getsignal(number) for number in SIGNALS] == signal_handlers
