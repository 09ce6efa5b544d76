# SPDX-License-Identifier: Apache-2.0
"""The part of cases of kind "bytes": contents of gradients, functions of ranks, and the exchange of whole steps."""
