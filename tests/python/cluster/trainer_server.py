# SPDX-License-Identifier: Apache-2.0
"""Kubeflow Trainer's server for the status of TrainJobs, on the loopback, with the rules of the real one.

The rules come from pkg/statusserver of Trainer 2.3, and the fields from its definition of TrainJob. The certificates
have the form of the ones that its cert-controller makes. Tokens are signed with a key that the tests have, in place of
the cluster's.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema

__all__ = ["NAMESPACE", "PATH", "TrainerServer", "authority", "environment", "running", "token"]

NAMESPACE, JOB = "team-a", "train"
PATH = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs/{JOB}/status"
AUDIENCE = f"trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs/{JOB}/status"
_KEY = b"the key of the cluster"
_MOST_BYTES = 1 << 16
_TEXT = {"type": "string", "minLength": 1, "maxLength": 64}
_STATUS = {
    "type": "object",
    "required": ["lastUpdatedTime"],
    "properties": {
        "progressPercentage": {"type": "integer", "minimum": 0, "maximum": 100},
        "estimatedRemainingSeconds": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        "metrics": {
            "type": "array",
            "maxItems": 256,
            "items": {"type": "object", "required": ["name", "value"], "properties": {"name": _TEXT, "value": _TEXT}},
        },
        "lastUpdatedTime": {"type": "string"},
    },
    "additionalProperties": False,  # the real server drops unknown fields; a report should have none
}


@dataclass
class TrainerServer:
    """The record of what the server has taken, and its next answers.

    Attributes:
        url: as the plugin gives it to pods.
        authority: the file of the certificate that clients have to trust.
        statuses: all that it took, in order.
        answers: the status codes of all its answers.
        is_slow: whether it waits with its answers.
        location: it answers with a redirection to there, if it is set.
    """

    url: str
    authority: Path
    statuses: list[dict[str, Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    is_slow: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)
    location: str = ""

    def judge(self, path: str, header: str, body: bytes) -> tuple[int, Any]:
        """Returns the status code, and the answer or the message of a refusal."""
        if len(body) > _MOST_BYTES:
            return 413, "Payload too large"
        if path != PATH:
            return 404, "Not found"
        if not _is_authorized(header):
            return 403, "Forbidden"
        try:
            found = json.loads(body)
            status = found["trainerStatus"]
            jsonschema.validate(status, _STATUS)
            # the form of RFC 3339 that Go reads
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", status["lastUpdatedTime"])
            datetime.fromisoformat(status["lastUpdatedTime"])
        except jsonschema.ValidationError as error:
            return 422, f"trainerStatus: {error.message}"
        except (ValueError, KeyError, TypeError, AssertionError):
            return 422, "Invalid payload"
        self.statuses.append(status)
        return 200, found


def token(audience: str = AUDIENCE, namespace: str = NAMESPACE, lasts_s: float = 3600, key: bytes = _KEY) -> str:
    """Returns a token of a pod, as the kubelet puts it into the pod's file."""
    claims = {"aud": [audience], "exp": time.time() + lasts_s, "kubernetes.io": {"namespace": namespace}}
    signed = f"{_packed({'alg': 'HS256'})}.{_packed(claims)}"
    return f"{signed}.{_base64(hmac.digest(key, signed.encode(), hashlib.sha256))}"


def environment(server: TrainerServer, token_file: Path) -> dict[str, str]:
    """The variables that the plugin sets in pods."""
    return {
        "KUBEFLOW_TRAINER_SERVER_URL": server.url,
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(server.authority),
        "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token_file),
    }


def authority(folder: Path) -> None:
    """Makes ca.crt, tls.crt and tls.key. The server's name is localhost."""
    usage = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,digitalSignature,keyEncipherment,keyCertSign\n"
    (folder / "ca.ext").write_text(f"{usage}subjectKeyIdentifier=hash\nsubjectAltName=DNS:trainer-ca\n")
    (folder / "tls.ext").write_text(
        "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n"
        "extendedKeyUsage=serverAuth\nauthorityKeyIdentifier=keyid:always\nsubjectAltName=DNS:localhost\n"
    )
    for name, subject in (("ca", "/O=trainer/CN=trainer-ca"), ("tls", "/CN=localhost")):
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key")
        _openssl(folder, "req", "-new", *key, "-out", f"{name}.csr", "-subj", subject)
    signed = ("x509", "-req", "-days", "1")
    _openssl(folder, *signed, "-in", "ca.csr", "-signkey", "ca.key", "-extfile", "ca.ext", "-out", "ca.crt",
             "-set_serial", "0")  # fmt: skip
    _openssl(folder, *signed, "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-extfile", "tls.ext", "-out",
             "tls.crt", "-set_serial", "1")  # fmt: skip


@contextlib.contextmanager
def running(folder: Path) -> Iterator[TrainerServer]:
    """Runs a server with the certificates of a folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler, bind_and_activate=False) as listening:
        listening.daemon_threads = True
        listening.server_bind()
        listening.server_activate()
        listening.socket = context.wrap_socket(listening.socket, server_side=True, do_handshake_on_connect=False)
        found = TrainerServer(f"https://localhost:{listening.server_port}{PATH}", folder / "ca.crt")
        listening.trainer = found  # type: ignore[attr-defined]
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield found
        finally:
            found.goes_on.set()
            listening.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        trainer: TrainerServer = self.server.trainer  # type: ignore[attr-defined]
        header = self.headers.get("Authorization", "")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, content = trainer.judge(self.path, header, body)
        if trainer.location:
            status = 307
        trainer.answers.append(status)
        if trainer.is_slow.is_set():
            trainer.goes_on.wait()
        if status != 200:
            content = {"kind": "Status", "status": "Failure", "message": content, "code": status}
        answer = json.dumps(content).encode()
        with contextlib.suppress(OSError):  # a client that did not wait
            self.send_response(status)
            if trainer.location:
                self.send_header("Location", trainer.location)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Without this, each request is a line on stderr."""


def _is_authorized(header: str) -> bool:
    words = header.split()
    if len(words) != 2 or words[0].lower() != "bearer" or words[1].count(".") != 2:
        return False
    signed, _, signature = words[1].rpartition(".")
    if not hmac.compare_digest(signature, _base64(hmac.digest(_KEY, signed.encode(), hashlib.sha256))):
        return False
    claims = json.loads(base64.urlsafe_b64decode(signed.partition(".")[2] + "=="))
    namespace = claims["kubernetes.io"]["namespace"]
    return AUDIENCE in claims["aud"] and claims["exp"] > time.time() and namespace == NAMESPACE


def _packed(value: Any) -> str:
    return _base64(json.dumps(value).encode())


def _base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=120)
