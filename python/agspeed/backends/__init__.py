# SPDX-License-Identifier: Apache-2.0
"""Candidates (the ways to run a captured region) and their registry."""

from agspeed.backends.base import Candidate, CompileOptions, Runner
from agspeed.backends.registry import candidate, candidate_names, candidates

__all__ = ["Candidate", "CompileOptions", "Runner", "candidate", "candidate_names", "candidates"]
