# SPDX-License-Identifier: Apache-2.0
"""One request to Trainer's server: it is taken under the server's rules, and the token goes nowhere else."""

from __future__ import annotations

import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agspeed.cluster.status_server import StatusServer
from agspeed.errors import AgspeedError
from tests.python.cluster import trainer_server
from tests.python.cluster.trainer_server import TrainerServer, environment, token

_TIMEOUT_S = 60.0
BODY = json.dumps({"trainerStatus": {"progressPercentage": 45, "lastUpdatedTime": "2026-11-30T00:00:00Z"}}).encode()


@pytest.fixture
def client(server: TrainerServer, tmp_path: Path) -> StatusServer:
    (tmp_path / "token").write_text(token() + "\n")
    found = StatusServer.of(environment(server, tmp_path / "token"))
    assert found is not None
    return found


def test_a_status_is_taken(client: StatusServer, server: TrainerServer) -> None:
    client.send(BODY, _TIMEOUT_S)
    assert [each["progressPercentage"] for each in server.statuses] == [45]


@pytest.mark.parametrize(
    "wrong",
    [
        {"audience": trainer_server.AUDIENCE.replace("/train/", "/other/")},
        {"namespace": "team-b"},
        {"lasts_s": -1},
        {"key": b"the key of another cluster"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_refused_token_is_named(wrong: dict[str, Any], client: StatusServer, server: TrainerServer) -> None:
    client.token_file.write_text(token(**wrong))
    with pytest.raises(AgspeedError, match="the server answered 403: Forbidden"):
        client.send(BODY, _TIMEOUT_S)
    assert not server.statuses


def test_a_token_that_was_renewed_is_used(client: StatusServer, server: TrainerServer) -> None:
    client.token_file.write_text(token(lasts_s=-1))
    with pytest.raises(AgspeedError, match="403"):
        client.send(BODY, _TIMEOUT_S)
    client.token_file.write_text(token())
    client.send(BODY, _TIMEOUT_S)
    assert server.answers == [403, 200]


@pytest.mark.parametrize("text", ["", "one two", "one\ntwo", "schlüssel", "\x00"])
def test_a_file_without_a_token_is_named_and_its_text_is_not(
    text: str, client: StatusServer, server: TrainerServer
) -> None:
    client.token_file.write_text(text)
    with pytest.raises(AgspeedError) as raised:
        client.send(BODY, _TIMEOUT_S)
    assert str(raised.value) == f"{client.token_file} holds no token" and not server.answers


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no json", "422: Invalid payload"),
        (json.dumps({"trainerStatus": {"lastUpdatedTime": "today"}}).encode(), "422: Invalid payload"),
        (BODY.replace(b"45", b"101"), "422: trainerStatus: 101 is greater than the maximum of 100"),
        (BODY + b" " * 65536, "413: Payload too large"),
    ],
)
def test_the_reason_of_the_server_is_given(body: bytes, reason: str, client: StatusServer) -> None:
    with pytest.raises(AgspeedError, match=f"the server answered {reason}"):
        client.send(body, _TIMEOUT_S)


def test_a_server_with_another_authority_gets_no_token(
    client: StatusServer, server: TrainerServer, tmp_path: Path
) -> None:
    trainer_server.authority(tmp_path)
    other = replace(client, authority_file=tmp_path / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError):
        other.send(BODY, _TIMEOUT_S)
    assert not server.answers


def test_a_server_of_another_name_gets_no_token(client: StatusServer, server: TrainerServer) -> None:
    other = replace(client, url=client.url.replace("localhost", "127.0.0.1"))
    with pytest.raises(ssl.SSLCertVerificationError):
        other.send(BODY, _TIMEOUT_S)
    assert not server.answers


@pytest.mark.parametrize("text", [None, "", "no certificate"])
def test_a_file_without_a_certificate_is_named(text: str | None, client: StatusServer, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(AgspeedError, match=f"^{file} holds no certificate: "):
        replace(client, authority_file=file).send(BODY, _TIMEOUT_S)


@pytest.mark.parametrize("url", ["http://localhost:1/status", "/status", "ftp://localhost/status"])
def test_an_address_without_tls_gets_no_token(url: str, client: StatusServer) -> None:
    with pytest.raises(AgspeedError, match="no address that begins with https://"):
        replace(client, url=url, token_file=Path("/does/not/exist")).send(BODY, _TIMEOUT_S)


def test_a_redirection_is_not_followed(client: StatusServer, server: TrainerServer) -> None:
    server.location = server.url
    with pytest.raises(AgspeedError, match="the server answered 307"):
        client.send(BODY, _TIMEOUT_S)
    assert server.answers == [307]


def test_a_proxy_gets_no_token(client: StatusServer, server: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    client.send(BODY, _TIMEOUT_S)
    assert server.answers == [200]


def test_a_server_that_is_away_is_an_error(client: StatusServer, certificates: Path) -> None:
    with trainer_server.running(certificates) as away:
        pass
    with pytest.raises(ConnectionRefusedError):
        replace(client, url=away.url).send(BODY, _TIMEOUT_S)


def test_a_server_that_does_not_answer_is_given_up(client: StatusServer, server: TrainerServer) -> None:
    server.is_slow.set()
    with pytest.raises(TimeoutError):
        client.send(BODY, 0.2)


def test_a_process_outside_of_a_trainjob_has_no_server(server: TrainerServer, tmp_path: Path) -> None:
    whole = environment(server, tmp_path / "token")
    assert StatusServer.of({}) is None
    for name in whole:
        assert StatusServer.of({**whole, name: ""}) is None
