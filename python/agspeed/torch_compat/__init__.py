# SPDX-License-Identifier: Apache-2.0
"""The one room for what agspeed takes from torch's private parts: one module per part of torch.

Each module has a `PART` that lists what it needs, by which its names are loaded and by which `probe.py` says whether
this torch has them; a difference between minors is one condition in one place, with the version in it. Importing any
module of this package loads no private part of torch and fails under no torch: names are looked up once asked for.
Nobody else in agspeed names a private part of torch (`tests/lint/check_torch_private.py`). Stateless; any thread.
"""
