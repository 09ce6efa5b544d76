# SPDX-License-Identifier: Apache-2.0
"""Where torch's compiler keeps its code: in a folder that only this user may write to.

By itself it takes a folder in the temporary directory whose name anybody can foresee. Another user who makes that
folder first has code and pickles of theirs loaded. Here it is `inductor` below agspeed's own cache, or the folder that
the user chose by TORCHINDUCTOR_CACHE_DIR. Either has to belong to this user or root, and no other user may write to it.

Only agspeed's own compiles go there. Afterwards the variables and the compiler are as they were: other users of
``torch.compile`` in the process keep the cache that they had. A compile by another thread meanwhile goes there, too.
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
    """The variables by which the user has chosen folders. Torch sets them, too, to what it takes by itself."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in (_INDUCTOR, _TRITON) if env.get(name) and not _is_torchs_own(env[name])}


def folder_below(cache_dir: str | os.PathLike[str]) -> Path:
    """Where compiles go that the user has chosen no folder for."""
    return Path(cache_dir).absolute() / _FOLDER


def variables(cache_dir: str | os.PathLike[str]) -> dict[str, str]:
    """The environment by which another process takes the same folder; makes the folder. cache_dir: agspeed's cache, ""
    for none. Where that cannot be used, it is one of this user's in the temporary directory.

    Raises: UnsupportedError with the reason where no folder can be trusted.
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
    """`environ` for another process, by which it takes the same folder; its compiles say where none can be trusted."""
    others = {name: text for name, text in environ.items() if name not in (_INDUCTOR, _TRITON)}
    try:
        return others | variables(cache_dir)
    except UnsupportedError:
        return others | chosen(environ)


@contextlib.contextmanager
def using(cache_dir: str | os.PathLike[str]) -> Iterator[str]:
    """Inside the block the environment is that of `variables`; gives the folder. Raises: as `variables`."""
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
    """As `using` the process's own cache, for imports of torch's compiler, which make its folder; they read nothing."""
    from agspeed import config

    with contextlib.ExitStack() as block:
        with contextlib.suppress(UnsupportedError, UserError):
            if _INDUCTOR not in chosen():
                block.enter_context(using(config.resolve().cache_dir))
        yield


def _is_torchs_own(path: str) -> bool:
    """Whether that is, or is below, what torch takes by itself."""
    parent = Path(tempfile.gettempdir()).absolute()
    place = Path(path).absolute()
    return parent in place.parents and place.relative_to(parent).parts[0].startswith("torchinductor_")


def _why_unfit(folder: Path) -> str | None:
    """Why no code is to be taken from a folder, as a part of a sentence, or None; it is made where it is not there."""
    try:
        files.make_folder(folder)
        info = folder.stat()
    except OSError as error:
        return f"{str(folder)!r}, which cannot be made ({error.strerror})"
    if not stat.S_ISDIR(info.st_mode):
        return f"{str(folder)!r}, which is no folder"
    if info.st_uid not in (os.geteuid(), 0):
        return f"{str(folder)!r}, which belongs to user {info.st_uid} and not to you"
    from agspeed.config import paths

    return f"{str(folder)!r}, to which other users may write" if paths.is_open(info) else None
