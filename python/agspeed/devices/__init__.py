# SPDX-License-Identifier: Apache-2.0
"""Devices that training runs on: where tensors live, and time, memory and identity of a GPU."""
