# SPDX-License-Identifier: Apache-2.0
"""The training that the elastic cases run, and the faults that its processes meet."""
