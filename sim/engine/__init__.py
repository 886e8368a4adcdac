"""The pure core of an emulated inference engine: step-time model, KV cache, batch scheduler.

No clock, no I/O and no randomness: time comes in as ``now_ms``. The HTTP emulator runs this core in real
time; a discrete-event simulator runs the same core in virtual time.
"""

from sim.engine.kv_cache import KvCache
from sim.engine.scheduler import EngineScheduler
from sim.engine.sequence import EngineCounters, EngineRequest, FinishedRequest, FinishReason, StepResult
from sim.engine.step_model import PARAM_SETS, StepParams, frontend_ms, params_named, step_ms

__all__ = [
    "PARAM_SETS",
    "EngineCounters",
    "EngineRequest",
    "EngineScheduler",
    "FinishReason",
    "FinishedRequest",
    "KvCache",
    "StepParams",
    "StepResult",
    "frontend_ms",
    "params_named",
    "step_ms",
]
