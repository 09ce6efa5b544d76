# SPDX-License-Identifier: Apache-2.0
"""Manifests of a job for Kubernetes and Docker, made from one small description. See README.md."""
