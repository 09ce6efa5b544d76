# SPDX-License-Identifier: Apache-2.0
"""Captured graphs: how they run, the candidates' outcomes for them, and runners that adapt a candidate's results."""
