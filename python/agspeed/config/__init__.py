# SPDX-License-Identifier: Apache-2.0
"""Settings: one table, four places a value may come from, and a record of which place won."""

from agspeed.config.resolve import (
    FILE_NAME,
    MODES,
    NUMERICS,
    SETTINGS,
    UNSET,
    Origin,
    Setting,
    Settings,
    check_names,
    check_paths,
    find_files,
    resolve,
    suggestion,
)

__all__ = [
    "FILE_NAME",
    "MODES",
    "NUMERICS",
    "SETTINGS",
    "UNSET",
    "Origin",
    "Setting",
    "Settings",
    "check_names",
    "check_paths",
    "find_files",
    "resolve",
    "suggestion",
]
