# SPDX-License-Identifier: Apache-2.0
"""The version of agspeed, the one place that states it: CMake, the wheel and the package read it from here."""

__version__ = "0.1.0"
