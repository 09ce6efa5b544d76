# SPDX-License-Identifier: Apache-2.0
"""Changes of single operators: eager's values, the same values faster, and the types that ATen returns."""
