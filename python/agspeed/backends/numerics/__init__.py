# SPDX-License-Identifier: Apache-2.0
"""Other forms of single operators: the same values as eager's, or the same values faster."""
