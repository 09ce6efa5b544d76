# SPDX-License-Identifier: Apache-2.0
"""Settings for every Python test: no test touches the user's caches or settings, and hypothesis has no deadline."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("agspeed", deadline=None, print_blob=True)
hypothesis.settings.load_profile("agspeed")


def pytest_configure() -> None:
    """Keeps handlers, such as pytest's log capture, away from torch's trace logger. With a handler, torch writes
    megabytes for each compile to it."""
    logging.getLogger("torch.__trace").addHandler = lambda handler: None  # type: ignore[method-assign]
    # A shell starts background commands with these ignored, and programs of tests would inherit that.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def private_home() -> Iterator[Path]:
    """A home of the session's own, which child processes inherit. Settings in the caller's environment are removed."""
    with tempfile.TemporaryDirectory(prefix="agspeed-tests-") as folder, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AGSPEED_")]:
            patch.delenv(name)
        patch.setenv("HOME", folder)
        patch.setenv("XDG_CACHE_HOME", f"{folder}/.cache")
        patch.setenv("XDG_CONFIG_HOME", f"{folder}/.config")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{folder}/.cache/inductor")
        yield Path(folder)


def _runs_inductor(item: pytest.Item) -> bool:
    """Whether the case has Inductor as a parameter. Its C++ compiler takes ten seconds or more per graph."""
    parameters = getattr(item, "callspec", None)
    return parameters is not None and any(
        value in ("inductor", "inductor-staged") for value in parameters.params.values() if isinstance(value, str)
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Files with slow tests begin first, so that the processes of a run end at about the same time.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if os.environ.get("AG_TEST_THOROUGH") != "1":
        skip = pytest.mark.skip(reason="much like another case, or slow to compile; AG_TEST_THOROUGH=1 runs it")
        for item in items:
            if item.get_closest_marker("thorough") or (_runs_inductor(item) and not item.get_closest_marker("smoke")):
                item.add_marker(skip)
    if shutil.which("chromium") is None:
        skip = pytest.mark.skip(reason="no chromium on PATH; the Debian package chromium provides it")
        for item in items:
            if item.get_closest_marker("chromium"):
                item.add_marker(skip)
