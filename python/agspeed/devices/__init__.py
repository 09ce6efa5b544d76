# SPDX-License-Identifier: Apache-2.0
"""The devices that training runs on: the placement of tensors, and the time, memory and identity of a GPU."""
