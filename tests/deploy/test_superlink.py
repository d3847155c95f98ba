"""Other machines reach the API for SuperNodes only; the server's own machine reaches all."""

import asyncio
from typing import Any

import pytest
from flwr.superlink import extensions

from fedwca.deploy import superlink
from fedwca.deploy.superlink import RestrictToLocalHost

SERVER, SITE = "10.1.2.3", "10.1.2.4"
START = "/v1/control/start-run"


def status(path: str, client: Any, kind: str = "http") -> int:
    """Return the status of the response; Flower's own is 200."""
    sent: list[dict[str, Any]] = []

    async def flower(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "client": client, "server": (SERVER, 9443)}
    asyncio.run(RestrictToLocalHost(flower)(scope, None, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "path",
    [
        START,
        "/v1/control/register-node",
        "/v1/runtime/pull-messages",
        "/",
        "/health",
        "/v1/fleet",
        "//v1/fleet/pull-messages",
        "/V1/fleet/x",
    ],
)
def test_other_machines_are_rejected(path: str) -> None:
    assert status(path, (SITE, 5555)) == 403


def test_sites_reach_the_supernode_api() -> None:
    assert status("/v1/fleet/pull-messages", (SITE, 5555)) == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", SERVER])
def test_the_servers_own_machine_reaches_all(address: str) -> None:
    assert status(START, (address, 5555)) == 200


@pytest.mark.parametrize("client", [None, ("", 0), ("localhost", 1), ("::ffff:10.1.2.4", 1)])
def test_an_unknown_address_is_rejected(client: Any) -> None:
    assert status(START, client) == 403


def test_flower_is_not_started_if_it_does_not_use_the_middleware(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extensions, "get_middleware", tuple)  # restored afterwards
    monkeypatch.setattr(superlink, "flower_superlink", lambda: pytest.fail("it was started"))
    monkeypatch.setattr(
        superlink.superlink_main, "_get_middleware", lambda: [superlink.Middleware(str)]
    )
    with pytest.raises(SystemExit, match="version of Flower"):
        superlink.main()


def test_flower_uses_the_middleware(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []
    monkeypatch.setattr(extensions, "get_middleware", tuple)
    monkeypatch.setattr(superlink, "flower_superlink", lambda: started.append(True))
    superlink.main()
    assert started == [True]
