# SPDX-License-Identifier: Apache-2.0
"""Settings: one table, four places a value may come from, and a record of which place won.

    keyword argument  >  environment variable  >  agspeed.toml  >  default

The only list of settings is runtime/base/settings.toml; `table.py` is generated from it, and names, types, defaults,
variables, keys, checks and documentation all come from there. agspeed.toml is looked for in the working directory and
its parents (the nearest one counts), then as ~/.config/agspeed/agspeed.toml; a key in the nearer file wins. A file
counts only where no other user can have written it (`paths.py`), and some settings only in the user's own (`own_file`).

To add a setting: one row in runtime/base/settings.toml, then `make format`.
"""

from agspeed.config.kinds import Secret, Setting
from agspeed.config.paths import FILE_NAME, find_files, home, why_not_writable
from agspeed.config.resolve import (
    UNSET,
    Origin,
    Settings,
    check_names,
    check_paths,
    choices_of,
    for_cpp,
    resolve,
    shown_variables,
    suggestion,
    without_secrets,
)
from agspeed.config.table import INTERNAL_VARIABLES, SETTINGS

__all__ = [
    "FILE_NAME",
    "INTERNAL_VARIABLES",
    "MODES",
    "NUMERICS",
    "SETTINGS",
    "UNSET",
    "Origin",
    "Secret",
    "Setting",
    "Settings",
    "check_names",
    "check_paths",
    "find_files",
    "for_cpp",
    "home",
    "resolve",
    "shown_variables",
    "suggestion",
    "why_not_writable",
    "without_secrets",
]

MODES = choices_of("mode")
NUMERICS = choices_of("numerics")
