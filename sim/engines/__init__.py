"""Emulated inference engines over HTTP: they speak and measure like vLLM 0.32, without a GPU.

Each instance runs :class:`sim.engine.EngineScheduler` in real time. To embed a fleet in a test::

    async with EmulatedFleet([InstanceSpec(instance="eu-0", region="eu", model="llama-70b")]) as fleet:
        url = fleet.instances[0].url
"""

from sim.engines.errors import EmulatorError
from sim.engines.fleet import EmulatedFleet, remove_endpoints, write_endpoint_list, write_endpoints
from sim.engines.instance import EmulatedInstance
from sim.engines.spec import InstanceSpec, load_specs

__all__ = [
    "EmulatedFleet",
    "EmulatedInstance",
    "EmulatorError",
    "InstanceSpec",
    "load_specs",
    "remove_endpoints",
    "write_endpoint_list",
    "write_endpoints",
]
