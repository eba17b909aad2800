"""GPUs that a dry run can plan for: data sheets, assumed utilization, and what benchmarks/gpu.py has measured."""

import json
from dataclasses import dataclass, replace

from bnpo.files import ROOT, InputError
from bnpo.planning.memory import GIB, ModelShape
from bnpo.speed import peak_tflops

# GiB of memory as torch reports it, rounded down, 10^12 bytes per second of bandwidth (the SXM version), and GiB of CPU
# memory per GPU, which are assumed.
GPUS = {
    "H20": (95.0, 4.0, 256),
    "A100-80GB": (79.1, 2.04, 256),
    "H100": (79.1, 3.35, 256),
    "H200": (139.7, 4.8, 256),
    "L40S": (44.3, 0.864, 128),
    "RTX-PRO-6000": (94.9, 1.79, 128),
    "RTX-5090": (31.3, 1.79, 64),
    "RTX-4090": (23.5, 1.01, 64),
    "RTX-5080": (15.4, 0.96, 64),
}
BENCHMARKS = {1536: "1.5b", 3584: "7b"}  # name of a shape in benchmarks/gpu.py, by hidden size


@dataclass(frozen=True)
class GpuSpeed:
    """Memory and speed of one GPU for one model."""

    name: str
    memory: int  # bytes
    bandwidth: float  # bytes per second
    flops: float  # bf16 operations per second
    host: int  # bytes of CPU memory per GPU
    bandwidth_use: float = 0.6  # share of the bandwidth that sampling reaches
    sampling_use: float = 0.4  # share of the operations that sampling reaches: few rows per product
    mfu: float = 0.35  # share of the operations that an update reaches
    sync: float | None = None  # seconds of a weight sync, if measured
    measured: str = ""  # which of these values were measured, and the file they come from


def speed_of(gpu: str, shape: ModelShape) -> GpuSpeed:
    """Return the speed of `gpu` for a model of `shape`. Raises InputError for an unknown GPU."""
    if gpu not in GPUS:
        raise InputError(f"--gpu: unknown GPU '{gpu}'; known: {', '.join(GPUS)}")
    memory, bandwidth, host = GPUS[gpu]
    peak = peak_tflops(gpu.replace("-", " "))
    speed = GpuSpeed(gpu, int(memory * GIB), bandwidth * 1e12, peak * 1e12, host * GIB)
    for path in sorted((ROOT / "benchmarks" / "rows").glob("*.json")):
        words = path.stem.upper().split("-")
        # An H100 NVL is not an H100: its name has the same words, but its peak is another one.
        if set(gpu.upper().split("-")) <= set(words) and peak_tflops(" ".join(words)) == peak:
            rows = json.loads(path.read_text(encoding="utf-8"))
            model = BENCHMARKS.get(shape.hidden, "")
            # One GPU cannot hold the optimizer of the 7B. Its update is measured with half of the layers.
            mfu = rows.get(f"{model}_mfu", rows.get(f"{model}-half_mfu"))
            values = {"mfu": mfu, "sync": rows.get(f"{model}_sync_seconds")}
            measured = {name: value for name, value in values.items() if value is not None}
            source = f"{', '.join(measured)}: benchmarks/rows/{path.name}" if measured else ""
            return replace(speed, measured=source, **measured)
    return speed
