# SPDX-License-Identifier: Apache-2.0
"""Hosts with ssh, manifests for Kubernetes and Docker, and the progress of a TrainJob. See README.md."""

from __future__ import annotations

from agspeed.cluster.progress import report_progress

__all__ = ["report_progress"]
