# SPDX-License-Identifier: Apache-2.0
"""Horovod's API over agspeed's transport.

    import agspeed.horovod.torch as hvd      in a script that is edited
    python -m agspeed.horovod train.py       a script that says `import horovod.torch as hvd`, unedited
    agspeed.horovod.install_alias()          the same within a program, before it imports horovod
    agspeed.horovod.run(function, num_proc=4)  calls a function at every rank of a job on this host

Importing this package is cheap: torch is loaded by agspeed.horovod.torch.
"""

from __future__ import annotations

from agspeed.horovod.alias import install_alias
from agspeed.horovod.function_job import run
from agspeed.version import __version__

__all__ = ["__version__", "install_alias", "run"]
