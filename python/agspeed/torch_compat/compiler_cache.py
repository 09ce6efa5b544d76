# SPDX-License-Identifier: Apache-2.0
"""The cache folder of torch's compiler for agspeed's compiles: only this user may write to it.

By default, torch's compiler uses a folder in the temporary directory with a predictable name. Another user can create
that folder first, and the compiler then loads that user's code and pickles. agspeed uses the folder `inductor` below
its own cache, or the folder that the user chose with TORCHINDUCTOR_CACHE_DIR. The folder must belong to this user or
root, and no other user may write to it.

Only agspeed's own compiles use the folder. Afterwards, the variables and the compiler are as before, so other uses of
``torch.compile`` in the process keep their cache. A compile of another thread at the same time also uses the folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from agspeed import files
from agspeed.errors import UnsupportedError, UserError

_INDUCTOR, _TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
_FOLDER = "inductor"


def chosen(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables with folders that the user has chosen. torch sets the variables to its default folders, too."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in (_INDUCTOR, _TRITON) if env.get(name) and not _is_torchs_own(env[name])}


def folder_below(cache_dir: str | os.PathLike[str]) -> Path:
    """The folder for compiles if the user has chosen none."""
    return Path(cache_dir).absolute() / _FOLDER


def variables(cache_dir: str | os.PathLike[str]) -> dict[str, str]:
    """Creates the folder, and returns the environment variables that make another process use it, too.

    cache_dir: agspeed's cache, "" for none. If it cannot be used, the folder is this user's in the temporary directory.

    Raises: UnsupportedError with the reason if no folder can be trusted.
    """
    own = chosen()
    if _INDUCTOR in own:
        if (reason := _why_unfit(Path(own[_INDUCTOR]))) is not None:
            raise UnsupportedError(
                f"torch's compiler would take code from {_INDUCTOR}, {reason}: name a folder of your own"
            )
        return own
    places = [Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"]
    if cache_dir and _why_unfit(Path(cache_dir).absolute()) is None:
        places.insert(0, folder_below(cache_dir))
    reasons = []
    for place in places:
        if (reason := _why_unfit(place)) is None:
            return {**own, _INDUCTOR: str(place)}
        reasons.append(reason)
    raise UnsupportedError(
        f"torch's compiler would take code from {reasons[-1]}: set {_INDUCTOR} to a folder of your own"
    )


def handed_on(environ: Mapping[str, str], cache_dir: str | os.PathLike[str]) -> dict[str, str]:
    """Returns `environ` with the variables that make another process use the same folder.

    If no folder can be trusted, this raises no error; compiles in the other process do.
    """
    others = {name: text for name, text in environ.items() if name not in (_INDUCTOR, _TRITON)}
    try:
        return others | variables(cache_dir)
    except UnsupportedError:
        return others | chosen(environ)


@contextlib.contextmanager
def using(cache_dir: str | os.PathLike[str]) -> Iterator[str]:
    """Inside the block, the environment has the variables of `variables`. Yields the folder. Raises: as `variables`."""
    taken = variables(cache_dir)
    before = {name: os.environ.pop(name, None) for name in (_INDUCTOR, _TRITON)}
    os.environ.update(taken)
    try:
        yield taken[_INDUCTOR]
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def while_loading() -> Iterator[None]:
    """Like `using` with the process's own cache, for imports of torch's compiler. They create its folder, but read
    nothing there."""
    from agspeed import config

    with contextlib.ExitStack() as block:
        with contextlib.suppress(UnsupportedError, UserError):
            if _INDUCTOR not in chosen():
                block.enter_context(using(config.resolve().cache_dir))
        yield


def _is_torchs_own(path: str) -> bool:
    """Whether a path is torch's default folder, or below it."""
    parent = Path(tempfile.gettempdir()).absolute()
    place = Path(path).absolute()
    return parent in place.parents and place.relative_to(parent).parts[0].startswith("torchinductor_")


def _why_unfit(folder: Path) -> str | None:
    """Why code in a folder cannot be trusted, as a part of a sentence, or None. Creates the folder if it is missing."""
    try:
        files.make_folder(folder)
        info = folder.stat()
    except OSError as error:
        return f"{str(folder)!r}, which cannot be made ({error.strerror})"
    if not stat.S_ISDIR(info.st_mode):
        return f"{str(folder)!r}, which is not a folder"
    if info.st_uid not in (os.geteuid(), 0):
        return f"{str(folder)!r}, which belongs to user {info.st_uid} and not to you"
    from agspeed.config import paths

    return f"{str(folder)!r}, to which other users may write" if paths.is_open(info) else None
