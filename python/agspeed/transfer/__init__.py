# SPDX-License-Identifier: Apache-2.0
"""Objects and states of optimizers as they travel to other ranks: `objects.py` and `optimizer_state.py`."""
