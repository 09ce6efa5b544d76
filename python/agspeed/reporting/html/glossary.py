# SPDX-License-Identifier: Apache-2.0
"""Explains the terms of a report in one line each, for the page's glossary and for tooltips."""

__all__ = ["TERMS"]

TERMS = {
    # keep-sorted
    "background": "Seconds of compiles in another process, while training went on.",
    "break-even": "The step at which the time saved has paid for the time that tuning took from training.",
    "candidate": "A way to run a captured graph: native (our compiler), inductor (torch.compile's), aot, graph-eager.",
    "combined plan": "A plan that runs some region with another candidate than the rest.",
    "eager": "PyTorch as it runs without agspeed: the reference, 1 ×.",
    "error": "Distance from the same computation in float64, as part of the result's size: largest, or typical (RMS).",
    "fallback": "A part that runs eagerly although it was to be compiled.",
    "foreground": "Seconds in which training stood still, or ran slower than it could have.",
    "graph break": "A place where capture had to stop: the code before and after it becomes graphs of their own.",
    "interval": "Where the true ratio lies with 95 % certainty; the more pairs, the narrower.",
    "numerics gate": "The check before use: outputs and gradients against float64, beside eager's error and a limit.",
    "pair": "Two blocks of real training steps, one eager, one with the plan, run in turns and compared.",
    "peak": "The most bytes of live tensors during a step.",
    "plan": "One candidate for the whole model, or a candidate for each region.",
    "recompile": "The same code captured again, because sizes or values changed.",
    "region": "One captured graph, known by the place it comes from and the shapes it takes.",
    "speed": "Eager's time for a step divided by the plan's: above 1 × is faster.",
    "trial": "Real training steps run with a plan, to time it.",
}
