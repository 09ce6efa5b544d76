# SPDX-License-Identifier: Apache-2.0
"""Settings: one table, four sources of a value, and a record of the source that was used.

    keyword argument  >  environment variable  >  agspeed.toml  >  default

The only list of settings is runtime/base/settings.toml. `table.py` is generated from it, and defines names, types,
defaults, variables, keys, checks and documentation. Two agspeed.toml files are read: the nearest one in the working
directory and its parents, and ~/.config/agspeed/agspeed.toml. A key in the nearer file wins. A file is used only if no
other user can have written it (`paths.py`). Some settings are allowed only in the user's own file (`own_file`).

To add a setting, add a row to runtime/base/settings.toml and run `make format`.
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
