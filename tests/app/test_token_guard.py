"""Guessing a token: counted per address over all processes, and refused after a while."""

from __future__ import annotations

import pytest
import redis
from flask.testing import FlaskClient

from app import create_app
from app.settings import Settings
from app.store import keys
from app.token_guard import MOST_WRONG_A_MINUTE, network_of
from tests.app.conftest import ADMIN_TOKEN

RIGHT = {"Authorization": f"Bearer {ADMIN_TOKEN}".encode().decode("latin-1")}
WRONG = {"Authorization": "Bearer guess"}


def guess(http: FlaskClient, path: str = "/admin/status", address: str = "192.0.2.1") -> int:
    return status(http, path, WRONG, address)


def status(
    http: FlaskClient, path: str, headers: dict[str, str], address: str = "192.0.2.1"
) -> int:
    return http.get(path, headers=headers, environ_base={"REMOTE_ADDR": address}).status_code


def test_after_ten_wrong_tokens_even_the_right_one_is_refused(
    http: FlaskClient, redis_client: redis.Redis
) -> None:
    assert [guess(http) for _ in range(MOST_WRONG_A_MINUTE)] == [401] * MOST_WRONG_A_MINUTE
    response = http.get("/admin/status", headers=RIGHT, environ_base={"REMOTE_ADDR": "192.0.2.1"})
    assert response.status_code == 429
    assert response.get_json()["error"]["code"] == "too_many_wrong_tokens"
    assert 1 <= int(response.headers["Retry-After"]) <= 60
    # Others may go on, and so may this address when its minute is over.
    assert status(http, "/admin/status", RIGHT, "192.0.2.2") == 200
    assert 0 < redis_client.ttl(keys.wrong_tokens("192.0.2.1")) <= 60
    redis_client.delete(keys.wrong_tokens("192.0.2.1"))
    assert status(http, "/admin/status", RIGHT) == 200


def test_the_metrics_are_no_way_around(http: FlaskClient) -> None:
    for _ in range(MOST_WRONG_A_MINUTE):
        assert guess(http, "/metrics") == 401
    assert status(http, "/metrics", RIGHT) == 429
    assert status(http, "/admin/status", RIGHT) == 429


def test_all_processes_count_together(
    http: FlaskClient, configured: Settings, redis_client: redis.Redis
) -> None:
    other = create_app(configured, redis_client).test_client()
    for number in range(MOST_WRONG_A_MINUTE):
        assert guess(http if number % 2 else other) == 401
    assert guess(http) == guess(other) == 429


def test_a_request_without_a_token_is_no_guess(http: FlaskClient) -> None:
    for _ in range(MOST_WRONG_A_MINUTE + 1):
        assert status(http, "/admin/status", {}) == 401
    assert status(http, "/admin/status", RIGHT) == 200


def test_a_written_header_does_not_change_the_address(http: FlaskClient) -> None:
    for number in range(MOST_WRONG_A_MINUTE):
        forged = {**WRONG, "X-Forwarded-For": f"198.51.100.{number}"}
        assert status(http, "/admin/status", forged) == 401
    assert guess(http) == 429


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("unix", "unknown"),
    ],
)
def test_an_ipv6_caller_is_a_whole_network(address: str, network: str) -> None:
    assert network_of(address) == network
