# SPDX-License-Identifier: Apache-2.0
"""The server of Kubeflow Trainer that takes the progress of a TrainJob: its place, its limits, and one request to it.

Trainer's plugin TrainJobStatus puts the place of the server, a token and a certificate into the pods of a TrainJob, if
the feature gate of that name is on. The sources are pkg/statusserver and the type TrainerStatus of Trainer 2.2 and 2.3.

Any thread; stateless.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from agspeed.errors import AgspeedError

__all__ = ["LARGEST_NUMBER", "MOST_BYTES_OF_TEXT", "StatusServer"]

LARGEST_NUMBER = 2**31 - 1
"""The percentage and the seconds are int32."""
MOST_BYTES_OF_TEXT = 64
"""The server allows 64 characters in a name or value of a metric. A character has one byte or more."""
_URL, _TOKEN, _AUTHORITY = (f"KUBEFLOW_TRAINER_SERVER_{each}" for each in ("URL", "TOKEN", "CA_CERT"))
_MOST_BYTES_OF_FILE = 1 << 16
_MOST_BYTES_OF_ANSWER = 1 << 16
_MOST_CHARACTERS_OF_REASON = 200


@dataclass(frozen=True)
class StatusServer:
    """A place that the environment of a pod names. Kubernetes renews both files while the pod runs."""

    url: str
    token_file: Path
    authority_file: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> StatusServer | None:
        """Returns the server; None if this process is in no pod of a TrainJob, or if the feature gate is off."""
        url, token, authority = (environ.get(name, "") for name in (_URL, _TOKEN, _AUTHORITY))
        return cls(url, Path(token), Path(authority)) if url and token and authority else None

    @property
    def name(self) -> str:
        """The host and port."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    def send(self, body: bytes, timeout_s: float) -> None:
        """Sends a status.

        The token goes to no other server: proxies of the environment are not used, and redirections not followed.

        Args:
            timeout_s: the limit for each wait on the network. The look-up of the server's name has its own limit.

        Raises: AgspeedError, OSError or http.client.HTTPException if the server has not taken it. No message has the
        token.
        """
        place = urlsplit(self.url)
        if place.scheme != "https" or not place.hostname:
            raise AgspeedError(f"{_URL} has no address that begins with https://")
        headers = {"Authorization": f"Bearer {_token(self.token_file)}", "Content-Type": "application/json"}
        connection = http.client.HTTPSConnection(
            place.hostname, place.port, timeout=timeout_s, context=_context(self.authority_file)
        )
        with contextlib.closing(connection):
            connection.request("POST", place.path, body, headers)
            answer = connection.getresponse()
            said = answer.read(_MOST_BYTES_OF_ANSWER)
        if answer.status != http.client.OK:
            raise AgspeedError(f"the server answered {answer.status}: {_message(said) or answer.reason}")


def _token(file: Path) -> str:
    """Reads the token. Text that cannot be a header is refused here, because Python's own error would show it."""
    with file.open("rb") as stream:
        word = stream.read(_MOST_BYTES_OF_FILE).strip()
    if not word.isascii() or not word.decode("ascii").isprintable() or len(word.split()) != 1:
        raise AgspeedError(f"{file} holds no token")
    return word.decode("ascii")


def _context(file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(file))
    except OSError as error:
        raise AgspeedError(f"{file} holds no certificate: {error.strerror or error}") from None


def _message(said: bytes) -> str:
    """Returns the message of an answer, which is a Status of Kubernetes; an empty text if it has none."""
    try:
        found = json.loads(said)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    text = "".join(each if each.isprintable() else " " for each in str(found))
    return text[:_MOST_CHARACTERS_OF_REASON]
