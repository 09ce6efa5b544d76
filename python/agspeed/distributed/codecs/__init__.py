# SPDX-License-Identifier: Apache-2.0
"""Codecs, which send gradients in fewer bytes and change them by that. README.md explains them. Users set one by
`agspeed.distributed.hooks`, or by `compression` of Horovod's optimizer."""
