# SPDX-License-Identifier: Apache-2.0
"""The share of an eager step that fusion cannot improve: matrix products, convolutions and attention.

The share is the profiler's self time of these ATen operators, including their oneDNN and MKL calls, over the self time
of everything in the steps: forward, backward and optimizer.
"""

import re

import torch

from benchmarks.workloads.base import Training

_HEAVY = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm|addbmm|dot|mv|linear|matmul|einsum|_?convolution\w*|conv\w*|mkldnn_\w*|"
    r"slow_conv\w*|thnn_conv\w*|_?scaled_dot_product\w*|_scaled_dot_product_flash_attention_for_cpu\w*|lstm|mkldnn_rnn\w*)$"
)


def is_product(event: str) -> bool:
    """Whether the profiler's event of this name is one of these operators."""
    return _HEAVY.match(event) is not None


def measure(training: Training, steps: int = 10) -> float:
    """Share in 0..1 over `steps` steps, after three untimed ones."""
    for index in range(3):
        training.step(training.batches[index % len(training.batches)])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for index in range(max(steps, training.period)):
            training.step(training.batches[index % len(training.batches)])
    rows = profiler.key_averages()
    total = sum(row.self_cpu_time_total for row in rows)
    return sum(row.self_cpu_time_total for row in rows if is_product(row.key)) / total
