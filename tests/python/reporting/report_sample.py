# SPDX-License-Identifier: Apache-2.0
"""A realistic report for tests. Every section is filled, every candidate state occurs, and a seed fixes all values."""

from __future__ import annotations

import random
from typing import Any

from agspeed.reporting import model, parts, timeline

PHASES = (
    ("eager", 60, 21.0, None),
    ("capture", 2, 95.0, None),
    ("gate", 6, 64.0, "native"),
    ("compile", 90, 21.6, "inductor"),
    ("trial", 240, 18.6, "native"),
    ("trial", 200, 18.9, "inductor"),
    ("steady", 2600, 16.0, "native"),
)
PAUSES = {"capture": 2.4, "gate": 3.1, "compile": 14.2}
EAGER_PEAK = 412 << 20
SOURCE = ">  131      def forward(self, x):\n   132          return self.head(self.blocks(x))"


def stragglers() -> dict[str, Any]:
    """Returns a straggler that lasts, and one that has ended."""
    lasting = {"kind": "compute", "rank": 5, "host": "node2", "share": 0.14, "since_step": 3100, "rail": ""}
    ended = {"kind": "rail", "rank": 6, "host": "node3", "share": 0.61, "since_step": 40, "rail": "eth2"}
    lasting |= {"until_step": None, "num_ranks": 1, "is_starved": False}
    ended |= {"until_step": 900, "num_ranks": 1, "is_starved": False}
    return {
        "rounds": 90,
        "lasting": [{**lasting, "text": "rank 5 (node2) computes 14 % longer since step 3,100"}],
        "ended": [{**ended, "text": "rail eth2 of rank 6 (node3) no longer holds the others up"}],
    }


def communication() -> dict[str, Any]:
    """Returns the counters of rank 2 of 4, over two rails of which one was lost once."""
    rails = [
        {"interface": name, "address": address, "frames_sent": sent >> 17, "bytes_sent": sent, "bytes_received": sent,
         "bytes_per_second": 1.2e8, "share": share, "failovers": failovers, "stalls": 0}
        for name, address, sent, share, failovers in (
            ("eth0", "10.0.0.5", 3 << 30, 0.75, 0), ("eth1", "10.1.0.5", 1 << 30, 0.25, 1))
    ]  # fmt: skip
    return {
        "rank": 2,
        "world_size": 4,
        "frames_resent": 41,
        "frames_duplicate": 2,
        "acknowledgements_sent": 1200,
        "connections_refused": 0,
        "shared_memory_bytes_sent": 2 << 30,
        "bytes_before_coding": 3 << 30,
        "bytes_after_coding": 2 << 30,
        "rails": rails,
        "operations": [
            {"operation": "all_reduce", "started": 3000, "ended": 2999, "failed": 0, "bytes": 4 << 30, "seconds": 59.98}
        ],
    }


def report(subject: str = "CharGPT") -> dict[str, Any]:
    """Returns the complete dictionary; `model.Report(report())` accepts it."""
    data = model.empty_report(subject)
    data["header"] |= _header()
    data["status"] = {"state": "tuned", "reason": "native won and holds its lead"}
    data["decision"] = {
        "chosen": "native",
        "why": "it is the fastest plan that passed the numerics gate",
        "source": "measured",
        "speedup": parts.interval(1.31, 1.288, 1.334, pairs=160),
        "drift": "7 checks, none below 1.27× of eager's speed",
        "resumed_pairs": 0,
    }
    data["plans"] = _plans()
    data["regions"] = _regions()
    data["timeline"] = _timeline()
    data["time_shares"] = _time_shares()
    data["graph_breaks"] = [
        parts.break_("call of print", location=parts.location("train.py", 88, "step"), count=3158, cost_ms=0.21),
        parts.break_(
            "data-dependent branch on Tensor.item()",
            location=parts.location("/home/user/project/models/gpt.py", 142, "CharGPT.forward"),
            count=3158,
            cost_ms=0.74,
        ),
    ]
    data["recompiles"] = [
        parts.recompile(
            "batch size changed from 64 to 17",
            region="0",
            location=parts.location("/home/user/project/models/gpt.py", 131, "CharGPT.forward"),
            cost_s=1.9,
        )
    ]
    data["cost"] = _cost()
    data["memory"] = {
        "eager_peak_bytes": EAGER_PEAK,
        "chosen_peak_bytes": 371 << 20,
        "limit_bytes": int(EAGER_PEAK * 1.15),
        "gate_peak_bytes": 655 << 20,
        "retained": {
            "is_on": True,
            "held_bytes": 212 << 20,
            "limit_bytes": 8 << 30,
            "reason": None,
            "faults_before": 9240.0,
            "faults_after": 3.0,
        },
    }
    data["fallbacks"] = [
        parts.fallback("an input is a tensor subclass", region="2", location=parts.location("train.py", 61), count=12)
    ]
    data["cache"] = {
        "directory": "/home/user/.cache/agspeed",
        "usable": True,
        "note": None,
        "stores": [parts.cache_store("decisions", misses=3), parts.cache_store("kernels", hits=9, misses=14)],
    }
    data["stragglers"] = stragglers()
    data["communication"] = communication()
    data["warnings"] = ["The machine was busy during 4 of 164 pairs; those pairs were dropped."]
    data["reproduce"] = {
        "command": "python train.py --batch-size 64 --steps 3000",
        "environment": {"AGSPEED_MODE": "auto", "OMP_NUM_THREADS": "2"},
        "plan": "/home/user/project/report.json",
    }
    return data


def _header() -> dict[str, Any]:
    return {
        "created_at": "2026-02-03T10:15:00+00:00",
        "parameters": 10_745_088,
        "parameter_bytes": 10_745_088 * 4,
        "versions": {"agspeed": "0.1.0", "python": "3.12.8", "torch": "2.11.0", "llvm": "22.1.8"},
        "machine": {
            "cpu": "Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz",
            "isa": "avx512",
            "cores": 2,
            "memory_bytes": 16 << 30,
            "os": "Linux-6.1.0-x86_64",
            "accelerators": [],
        },
        "threads": {"intra_op": 2, "inter_op": 2},
        "seed": 1234,
        "wall_s": 71.4,
        "settings": {
            "mode": {"value": "auto", "origin": "keyword"},
            "numerics": {"value": "standard", "origin": "default"},
            "budget_s": {"value": None, "origin": "default"},
            "cache_dir": {"value": "/home/user/.cache/agspeed", "origin": "environment variable AGSPEED_CACHE_DIR"},
        },
    }


def _gate(scale: float, verdict: str = "passed", reason: str | None = None) -> dict[str, Any]:
    return parts.gate(
        verdict,
        reason=reason,
        forward=parts.errors(3.1e-6 * scale, 4.0e-7 * scale, eager_max=2.9e-6, eager_rms=3.8e-7,
                             allowed_max=1.4e-5, allowed_rms=1.3e-6, worst="logits"),
        gradients=parts.errors(8.8e-6 * scale, 9.1e-7 * scale, eager_max=8.1e-6, eager_rms=8.9e-7,
                               allowed_max=3.4e-5, allowed_rms=2.3e-6, worst="wte.weight"),
    )  # fmt: skip


def _plans() -> list[dict[str, Any]]:
    def speed(estimate: float, half: float, pairs: int) -> dict[str, Any]:
        return parts.interval(estimate, estimate - half, estimate + half, pairs=pairs)

    return [
        parts.candidate("eager", state="slower", reason="the reference", step_ms=21.0, peak_bytes=EAGER_PEAK,
                        speedup=parts.interval(1.0, 0.994, 1.006, pairs=40)),
        parts.candidate("graph-eager", state="slower", step_ms=19.6, peak_bytes=EAGER_PEAK + (3 << 20), compile_s=1.1,
                        speedup=speed(1.07, 0.012, 80), gate=_gate(1.0)),
        parts.candidate("aot", state="slower", reason="not faster than graph-eager by more than 1 %", step_ms=20.8,
                        peak_bytes=390 << 20, compile_s=3.1, speedup=speed(1.01, 0.02, 80), gate=_gate(1.02)),
        parts.candidate("torchscript", state="failed", reason="RuntimeError: cannot script a generator expression",
                        log="/home/user/.cache/agspeed/logs/torchscript-0.log"),
        parts.candidate("inductor", state="slower", reason="1.24× against 1.31× of native", step_ms=16.9,
                        peak_bytes=366 << 20, compile_s=14.2, speedup=speed(1.24, 0.021, 160), gate=_gate(1.3)),
        parts.candidate("inductor-max-autotune", state="skipped", reason="generates the same code on this machine"),
        parts.candidate("bf16-plugin", state="wrong", reason="wte.weight's gradient is 4100 times as wrong as eager's",
                        compile_s=0.9, gate=_gate(4100.0, "rejected", "gradients out of tolerance")),
        parts.candidate("wide-arena", state="memory", reason="peak 31 % above eager's, 15 % is allowed", step_ms=15.7,
                        peak_bytes=540 << 20, compile_s=0.4, speedup=speed(1.33, 0.03, 40), gate=_gate(1.1)),
        parts.candidate("native", state="chosen", reason="the fastest plan that passed the gate", step_ms=16.0,
                        peak_bytes=371 << 20, compile_s=0.38, cached=False,
                        speedup=parts.interval(1.31, 1.288, 1.334, pairs=160), gate=_gate(1.1)),
        parts.candidate("native+r0:inductor", state="slower", step_ms=16.8, peak_bytes=372 << 20, compile_s=12.0,
                        speedup=speed(1.25, 0.02, 80), gate=_gate(1.3)),
    ]  # fmt: skip


def _regions() -> list[dict[str, Any]]:
    place = parts.location("/home/user/project/models/gpt.py", 131, "CharGPT.forward")
    return [
        parts.region(
            "0",
            location=place,
            operators=214,
            native_operators=131,
            shapes={"i64[64, 128]": 3000, "i64[17, 128]": 46},
            chosen="native",
            source=SOURCE,
            graph="class GraphModule(torch.nn.Module):\n    def forward(self, L_x_):\n        return (L_x_ + 1,)",
            generated="extern \"C\" void kernel(const float* in, float* out) {}",
            candidates=[
                parts.candidate("native", state="chosen", compile_s=0.31, gate=_gate(1.1)),
                parts.candidate("inductor", state="slower", compile_s=12.0, gate=_gate(1.3)),
            ],
        ),
        parts.region("1", location=parts.location("train.py", 92, "loss"), operators=6, native_operators=6,
                     shapes={"f32[8192, 96]": 3000}, chosen="native"),
        parts.region("2", location=parts.location("train.py", 61), operators=11, chosen=None),
    ]  # fmt: skip


def _timeline() -> dict[str, Any]:
    noise = random.Random(7)
    now = [0.0]
    recorder = timeline.TimelineRecorder(clock=lambda: now[0])
    for kind, steps, base, candidate in PHASES:
        if kind in PAUSES:
            now[0] += PAUSES[kind]
            recorder.pause(kind, PAUSES[kind], candidate)
        for _ in range(steps):
            wait = 2.0 + abs(noise.gauss(0, 0.5))
            ms = base * (1 + abs(noise.gauss(0, 0.03))) + (noise.random() < 0.004) * 14
            now[0] += (ms + wait) / 1000
            recorder.add(ms, wait_ms=wait, phase=kind, candidate=candidate)
    return recorder.to_json()


def _time_shares() -> list[dict[str, Any]]:
    return [
        parts.time_share("matrix products", "external", 7.9),
        parts.time_share("fused pointwise kernels", "native", 3.2),
        parts.time_share("optimizer step", "optimizer", 2.4),
        parts.time_share("input wait", "input-wait", 2.1),
        parts.time_share("embedding backward", "external", 1.1),
        parts.time_share("eager operators", "eager", 0.9),
        parts.time_share("guards and dispatch", "overhead", 0.03),
    ]


def _cost() -> dict[str, Any]:
    return {
        "entries": [
            parts.cost_entry("capture", count=2, foreground_s=0.9),
            parts.cost_entry("compile", candidate="inductor", foreground_s=1.4, background_s=31.0),
            parts.cost_entry("compile", candidate="native", foreground_s=0.1, background_s=0.38),
            parts.cost_entry("gate", candidate="native", count=3, foreground_s=0.4),
            parts.cost_entry("trial", candidate="inductor", count=200, foreground_s=0.2),
        ],
        "foreground_s": 3.0,
        "background_s": 31.4,
        "budget_s": None,
        "saving_ms_per_step": 5.0,
        "break_even_step": 910,
        "saved_s": 14.4,
        "left_s": 0.0,
        "next_run": "decided",
    }
