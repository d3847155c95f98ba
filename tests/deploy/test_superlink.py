"""From other machines only what sites need can be reached; the rest is for the server's own."""

import asyncio
from typing import Any

import pytest
from flwr.superlink import extensions

from fedwca.deploy import superlink
from fedwca.deploy.superlink import Door

HERE, SITE = "10.1.2.3", "10.1.2.4"
START = "/v1/control/start-run"


def status(path: str, client: Any, kind: str = "http") -> int:
    """What a request is answered; 200 by Flower."""
    sent: list[dict[str, Any]] = []

    async def flower(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "client": client, "server": (HERE, 9443)}
    asyncio.run(Door(flower)(scope, None, send))
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
def test_a_site_reaches_nothing_but_its_own_door(path: str) -> None:
    assert status(path, (SITE, 5555)) == 403


def test_sites_reach_what_they_need() -> None:
    assert status("/v1/fleet/pull-messages", (SITE, 5555)) == 200


@pytest.mark.parametrize("own", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", HERE])
def test_the_servers_own_machine_may_do_all(own: str) -> None:
    assert status(START, (own, 5555)) == 200


@pytest.mark.parametrize("client", [None, ("", 0), ("localhost", 1), ("::ffff:10.1.2.4", 1)])
def test_who_cannot_be_told_is_a_stranger(client: Any) -> None:
    assert status(START, client) == 403


def test_flower_is_not_started_where_it_does_not_ask_for_the_door(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extensions, "get_middleware", tuple)  # put back afterwards
    monkeypatch.setattr(superlink, "flower_superlink", lambda: pytest.fail("it was started"))
    monkeypatch.setattr(superlink.flowers, "_get_middleware", lambda: [superlink.Middleware(str)])
    with pytest.raises(SystemExit, match="cannot be closed to strangers"):
        superlink.main()


def test_flower_asks_for_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []
    monkeypatch.setattr(extensions, "get_middleware", tuple)
    monkeypatch.setattr(superlink, "flower_superlink", lambda: started.append(True))
    superlink.main()
    assert started == [True]
