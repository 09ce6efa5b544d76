# SPDX-License-Identifier: Apache-2.0
"""The private parts of torch that agspeed uses: one module for each part of torch.

Each module has a `PART` that lists the names it needs. The list loads the names at their first use, and `probe.py` uses
it to check whether this torch has them. A difference between minor releases is one condition in one place, which names
the release. Importing a module of this package loads no private part of torch, and works with every torch.

No other code in agspeed names a private part of torch (`tests/lint/check_torch_private.py`). Stateless; any thread.
"""
