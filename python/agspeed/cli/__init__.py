# SPDX-License-Identifier: Apache-2.0
"""The command line `agspeed`. It works without torch and without the native extension, and says what is missing.

Each subcommand has one file, for example doctor.py, report.py, cache.py, config.py, bench.py and version.py. To add a
subcommand, write a module with `add(commands)` and add an entry to main.py. `add` registers a parser whose default
`run` is a function from parsed arguments to an exit code.
"""

from agspeed.cli.main import main

__all__ = ["main"]
