# SPDX-License-Identifier: Apache-2.0
"""Defines the version of agspeed. CMake, the wheel and the package all read it from here."""

__version__ = "0.1.0"
