# SPDX-License-Identifier: Apache-2.0
"""What the elastic cases run: the training of a member, and the faults that it meets."""
