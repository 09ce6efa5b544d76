# SPDX-License-Identifier: Apache-2.0
"""The command line `agspeed`. Works without torch and without the native extension; says what is missing.

One file per subcommand: doctor.py, report.py, cache.py, config.py, bench.py, version.py. To add one: a module with
`add(commands)` that registers a parser whose `run` default is a function from parsed arguments to an exit code, and
one entry in main.py.
"""

from agspeed.cli.main import main

__all__ = ["main"]
