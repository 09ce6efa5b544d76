# SPDX-License-Identifier: Apache-2.0
"""Runs the command line for `python -m agspeed`."""

import sys

from agspeed.cli import main

sys.exit(main())
