# SPDX-License-Identifier: Apache-2.0
"""Stands for ssh in tests: it runs the remote command on this host, in the shell and with the variables of a new login.

The name of the host says what happens:

    node0, node1, ...    the command runs
    relay-...            the command runs behind pipes of this process: killing it is a lost connection
    chatty-...           a line is printed before the command runs
    evil-...             the file EVIL is printed instead
    hangs, and the keys of FAILURES: what ssh says before it fails

It appends its arguments to the file SSH_LOG, if that variable is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

FAILURES = {
    "denied": "root@denied: Permission denied (publickey,password).",
    "changed": "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
    "stranger": "No ED25519 host key is known for stranger and you have requested strict checking.\n"
    "Host key verification failed.",
    "refusing": "ssh: connect to host refusing port 22: Connection refused",
    "nowhere": "ssh: Could not resolve hostname nowhere: Name or service not known",
    "down": "ssh: connect to host down port 22: No route to host",
}


def main() -> None:
    words = sys.argv[1:]
    if path := os.environ.get("SSH_LOG"):
        with open(path, "a") as file:
            file.write("\0".join(words) + "\n")
    host, command = words[words.index("--") + 1 :]
    login = {"PATH": "/usr/bin:/bin", "HOME": "/", "SSH_CONNECTION": "127.0.0.1 40000 127.0.0.1 22"}
    login |= {name: value for name, value in os.environ.items() if name == "MARK_OF_TEST_JOB"}
    if host in FAILURES:
        print(FAILURES[host], file=sys.stderr)
        sys.exit(255)
    if host == "hangs":
        time.sleep(600)
    if host.startswith("evil-"):
        with open(os.environ["EVIL"], "rb") as file:
            sys.stdout.buffer.write(file.read())
        sys.stdout.flush()
        time.sleep(600)
    if host.startswith("chatty-"):
        print("Welcome to this host", flush=True)
    shell = ["/bin/sh", "-c", command]
    if host.startswith("relay-"):
        relay(shell, login)
    os.execve(shell[0], shell, login)


def relay(command: list[str], login: dict[str, str]) -> None:
    process = subprocess.Popen(command, env=login, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    threading.Thread(target=copy, args=(0, process.stdin.fileno()), daemon=True).start()
    copy(process.stdout.fileno(), 1)
    os._exit(process.wait())


def copy(source: int, sink: int) -> None:
    while data := os.read(source, 1 << 16):
        os.write(sink, data)
    os.close(sink)


if __name__ == "__main__":
    main()
