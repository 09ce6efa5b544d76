# SPDX-License-Identifier: Apache-2.0
"""`python -m agspeed` is the command line."""

import sys

from agspeed.cli import main

sys.exit(main())
