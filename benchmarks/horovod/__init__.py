# SPDX-License-Identifier: Apache-2.0
"""Parts of cases of kind "horovod", what their ranks run, and the gradient sets."""
