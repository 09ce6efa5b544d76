# SPDX-License-Identifier: Apache-2.0
"""What the rest of the package stands on: the native extension and GraphSpec, the export of captured graphs."""
