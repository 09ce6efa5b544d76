# SPDX-License-Identifier: Apache-2.0
"""Parts of cases of kind "horovod", the functions that their ranks run, and the gradient sets."""
