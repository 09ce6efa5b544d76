# SPDX-License-Identifier: Apache-2.0
"""What is done to a captured graph before it becomes a region."""
