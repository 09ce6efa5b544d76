# SPDX-License-Identifier: Apache-2.0
"""Removes what a bug report must not contain: names of users and hosts, paths, network addresses, secrets and values
of the environment.

Facts are chosen so that they contain none of these. Redaction protects against all other texts: error messages of other
programs, for example, quote paths. A placeholder shows where something was removed. Immutable objects; any thread.
"""

from __future__ import annotations

import getpass
import ipaddress
import os
import pwd
import re
import socket
import sys
import tempfile
from collections.abc import Iterable

from agspeed import config
from agspeed.reporting import format as fmt
from agspeed.reporting import secrets

__all__ = ["Redactor", "of_this_machine"]

_ADDRESS, _HOST, _PATH, _SECRET, _URL, _USER = "[address]", "[host]", "[path]", "***", "[url]", "[user]"
_PLACE = "/\0"
"""Stands for the path of a known folder until all paths are replaced. No text contains this character."""
_SYSTEM = re.compile(r"/(?:(?:bin|dev|etc|lib|lib32|lib64|proc|sbin|sys|usr)(?:/.*)?|tmp|opt|var)?/?")
"""Folders that are the same on all machines."""
_BEFORE = r"(?:(?<![\w.$\]])|(?<=\s-[A-Za-z]))"
"""The place before a path. An option such as -I may be joined to the path."""
_A_PATH = re.compile(_BEFORE + r"(?:~[\w.-]*)?/[^\s\"'`,;:()<>|=]*")
_KNOWN_END = re.compile(r"/(?:(?:\.cache|\.config)/agspeed(?:/.*)?|(?:dist|site)-packages/.*|agspeed\.toml)$")
"""The end of a path that is the same for all users, and that helps to understand a message."""
_A_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'`,;()<>|]+", re.I)
_MAC = re.compile(r"(?<![\w:-])(?:[0-9a-f]{2}[:-]){5,}[0-9a-f]{2}(?![\w:-])|(?<=\benx)[0-9a-f]{12}\b", re.I)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?:\.\d{1,3}){0,3}(?:%[\w.-]+)?(?!\w)", re.I)
_NEVER = "(?!)"
"""A pattern that matches nothing."""
_LEAST_VALUE = 8
"""Shorter values of the environment are words such as "1" or "C", and no secrets."""
_USERS = ("USER", "LOGNAME", "LNAME", "USERNAME", "SUDO_USER")
_HOSTS = re.compile(r"(?:\w*_)?(?:HOST|HOSTNAME|NODENAME|MASTER_ADDR)")
_HARMLESS_HOSTS = ("localhost", "localhost.localdomain")


class Redactor:
    """Replaces by a placeholder what must not be in a report."""

    def __init__(
        self,
        *,
        users: Iterable[str] = (),
        hosts: Iterable[str] = (),
        places: Iterable[str] = (),
        values: Iterable[str] = (),
        public: Iterable[str] = (),
    ) -> None:
        """
        Args:
            users: names of users.
            hosts: names of hosts. Their first labels and all names in their domains are replaced, too.
            places: paths of folders and files, which may contain spaces.
            values: texts that are secret as a whole.
            public: texts that a report may contain, such as versions, even if they are also among `values`.
        """
        self._public = tuple(public)
        self._values = _longest_first(value for value in map(_in_one_line, values) if not self._is_public(value))
        known = _longest_first(place.rstrip("/") for place in places if not _SYSTEM.fullmatch(place))
        self._a_place = re.compile(rf"{_BEFORE}(?:{'|'.join(map(re.escape, known)) or _NEVER})(?![\w-])")
        host = "|".join(_host_patterns(hosts)) or _NEVER
        user = "|".join(re.escape(name) for name in _longest_first(users) if _is_name(name)) or _NEVER
        self._a_name = re.compile(rf"\[\w+\]|(?<!\w)(?:(?P<host>{host})|(?P<user>{user}))(?!\w)", re.I)

    def apply(self, text: str) -> str:
        """Returns the text in one line, with placeholders."""
        text = _in_one_line(text)
        for value in self._values:
            text = text.replace(value, _SECRET)
        text = " ".join(secrets.masked(text.split(" ")))
        text = self._a_place.sub(_PLACE, text)
        text = _A_URL.sub(_URL, text)
        for pattern in (_MAC, _IPV6, _IPV4):
            text = pattern.sub(self._without_address, text)
        text = _A_PATH.sub(_without_path, text)
        return self._a_name.sub(lambda found: _HOST if found["host"] else _USER if found["user"] else found[0], text)

    def _is_public(self, value: str) -> bool:
        return any(value in text for text in self._public)

    def _without_address(self, found: re.Match[str]) -> str:
        word = found[0] if found[0].endswith("::") else found[0].rstrip(":")
        if self._is_public(word):
            return found[0]
        try:
            address = ipaddress.ip_address(word)
        except ValueError:
            return _ADDRESS if found.re is _MAC else found[0]
        if address.is_loopback or address.is_unspecified:
            return found[0]
        return _ADDRESS + found[0][len(word) :]


def of_this_machine(public: Iterable[str]) -> Redactor:
    """Returns a `Redactor` that knows this machine's name, and this user's names, folders and variables."""
    settings = {variable for setting in config.SETTINGS if not setting.secret for variable in setting.variables}
    foreign = {name: text for name, text in os.environ.items() if name not in settings}
    paths = [part for text in os.environ.values() for part in (text, *text.split(":")) if part[:1] == "/"]
    users, homes = _user()
    return Redactor(
        users=[*users, *(foreign.get(name, "") for name in _USERS)],
        hosts=[socket.gethostname(), *(text for name, text in foreign.items() if _HOSTS.fullmatch(name))],
        places=[*homes, *paths, tempfile.gettempdir(), sys.prefix],
        values=[text for text in foreign.values() if len(text) >= _LEAST_VALUE and text[:1] != "/"],
        public=public,
    )


def _user() -> tuple[list[str], list[str]]:
    """Returns the names and the home folders that the system's list of users has for this user."""
    try:
        entry = pwd.getpwuid(os.getuid())
        return [entry.pw_name, getpass.getuser()], [entry.pw_dir]
    except (ImportError, KeyError, OSError):
        return [], []


def _host_patterns(hosts: Iterable[str]) -> list[str]:
    """Returns patterns of the whole names, of their first labels, and of all names in their domains."""
    found = []
    for host in _longest_first(name.strip().strip(".") for name in hosts):
        if not _is_name(host) or host.lower() in _HARMLESS_HOSTS or _is_address(host):
            continue
        label, _, domain = host.partition(".")
        found += [rf"(?:[\w-]+\.)*{re.escape(domain)}"] if "." in domain else []
        found += [re.escape(host), re.escape(label)]
    return found


def _is_name(text: str) -> bool:
    return re.search(r"[^\W\d]", text) is not None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _without_path(found: re.Match[str]) -> str:
    path = found[0].rstrip(".")
    if _SYSTEM.fullmatch(path):
        return found[0]
    end = _KNOWN_END.search(path)
    return _PATH + (end[0] if end else "") + found[0][len(path) :]


def _in_one_line(text: str) -> str:
    return str(fmt.printable(" ".join(text.split())))


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted({text for text in texts if text}, key=lambda text: (-len(text), text))
