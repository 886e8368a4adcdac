"""GPUs through a fake NVML library that pynvml loads the way it loads the real one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.gpus import GpuSample
from sources.gpu.nvml import Nvml, NvmlUnavailable

HERE = Path(__file__).resolve().parent
READINGS = [name for name, field in GpuSample.model_fields.items() if "Reading" in str(field.annotation)]


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a libnvidia-ml.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler, so no fake NVML library can be made")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-Wall",
            "-Werror",
            "-o",
            str(folder / "libnvidia-ml.so.1"),
            str(HERE / "fake_nvml.c"),
        ],
        check=True,
        timeout=60,
    )
    return folder


class Said:
    """What an agent on a host with this NVML said, until it had said all of ``until``."""

    def __init__(self, folder: Path, mode: str, *until: str) -> None:
        done = subprocess.run(
            [sys.executable, str(HERE / "fake_host.py"), *until],
            env={**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_NVML": mode},
            cwd=HERE.parents[2],
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        said = json.loads(done.stdout)["said"]
        assert not any("never" in one for one in said), said[-5:]
        self.samples: list[dict[str, Any]] = [one["sample"] for one in said if "sample" in one]
        self.alerts: list[dict[str, Any]] = [one["alert"] for one in said if "alert" in one]

    def of(self, gpu: str) -> list[dict[str, Any]]:
        return [sample for sample in self.samples if sample["gpu"] == gpu]

    def states(self, gpu: str) -> list[str]:
        """The states that a GPU went through."""
        states = [sample["state"] for sample in self.of(gpu)]
        return [state for at, state in enumerate(states) if at == 0 or states[at - 1] != state]

    def news(self, subject: str) -> list[tuple[str, str]]:
        """The alerts of a subject as severity and state, heartbeats and rewordings left out."""
        mine = [
            (alert["severity"], alert["state"])
            for alert in self.alerts
            if alert["alert_id"] == f"gpu/node-1/{subject}"
        ]
        return [one for at, one in enumerate(mine) if at == 0 or mine[at - 1] != one]


def values(sample: dict[str, Any]) -> dict[str, float]:
    """The readings that are known."""
    for name in READINGS:
        assert (sample[name]["value"] is None) == (sample[name]["quality"] == "unknown"), name
    return {name: sample[name]["value"] for name in READINGS if sample[name]["value"] is not None}


def test_two_gpus_that_tell_everything(fake_library: Path) -> None:
    said = Said(fake_library, "fine", '"xid_last": 79', '"gpu": "GPU-fake-1"')
    first = said.of("GPU-fake-0")[-1]
    assert values(first) == {
        "utilization_ratio": 0.75,
        "memory_busy_ratio": 0.5,
        "memory_used_bytes": 20 * 2**30,
        "memory_total_bytes": 80 * 2**30,
        "power_w": 412.5,
        "power_limit_w": 700.0,
        "temperature_c": 61.0,
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
        "ecc_corrected_total": 7.0,
        "ecc_uncorrected_total": 0.0,
        "nvlinks_active": 3.0,
        "nvlink_errors_total": 5.0,
        "xid_total": 1.0,
    }
    assert (first["state"], first["host"], first["product"], first["index"]) == (
        ("ok", "node-1", "NVIDIA Fake 100", 0)
    )
    assert first["throttle_reasons"] == ["power-cap", "hw-thermal"]
    assert 0 <= first["at_ms"] - first["xid_last_at_ms"] < 60_000
    assert first["valid_for_ms"] > 0
    assert first["mig_enabled"] is False
    assert said.states("GPU-fake-1") == ["ok"]
    other = said.of("GPU-fake-1")[-1]
    assert (other["xid_total"]["value"], other["xid_last"]) in {(0.0, None), (None, None)}
    assert said.news("nvml") == [("info", "resolved")]
    assert said.news("GPU-fake-0") == [("info", "resolved")]


def test_an_xid_is_an_alert(fake_library: Path) -> None:
    said = Said(fake_library, "fine", "XID 79")
    assert said.news("GPU-fake-0/xid") == [("critical", "firing")]


def test_what_a_gpu_does_not_tell_is_unknown(fake_library: Path) -> None:
    said = Said(fake_library, "bare", '"gpu": "GPU-fake-0"')
    sample = said.of("GPU-fake-0")[-1]
    assert values(sample) == {
        "memory_used_bytes": 20 * 2**30,
        "memory_total_bytes": 80 * 2**30,
        "temperature_c": 61.0,
    }
    assert (sample["throttle_reasons"], sample["mig_enabled"], sample["xid_last"]) == (None, None, None)
    assert sample["state"] == "ok"


def test_numbers_that_nobody_can_mean_are_unknown(fake_library: Path) -> None:
    said = Said(fake_library, "garbage", '"gpu": "GPU-fake-0"')
    known = values(said.of("GPU-fake-0")[-1])
    assert known.keys() - {"xid_total"} == {
        "memory_total_bytes",
        "temperature_c",
        "nvlinks_active",
        "nvlink_errors_total",
    }


def test_mig_devices_are_samples_of_their_own(fake_library: Path) -> None:
    said = Said(fake_library, "mig", '"gpu": "GPU-fake-0"', '"gpu": "MIG-part-1"', '"gpu": "MIG-part-2"')
    assert said.of("GPU-fake-0")[-1]["mig_enabled"] is True
    for uuid, number in (("MIG-part-1", 0), ("MIG-part-2", 3)):
        part = said.of(uuid)[-1]
        assert (part["parent"], part["index"]) == ("GPU-fake-0", number)
        assert part["memory_total_bytes"]["value"] == 10 * 2**30


@pytest.mark.parametrize(
    ("mode", "words", "severity"),
    [("no_driver", "not loaded", "critical"), ("none", "but no GPU", "warning")],
)
def test_no_driver_or_no_gpu_is_an_alert(fake_library: Path, mode: str, words: str, severity: str) -> None:
    said = Said(fake_library, mode, words)
    assert said.samples == []
    assert said.news("nvml") == [(severity, "firing")]


def test_no_library_is_an_alert(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    said = Said(tmp_path, "fine", "no NVIDIA driver")
    assert said.samples == []
    assert said.news("nvml") == [("critical", "firing")]


def test_a_gpu_that_falls_off_the_bus_and_comes_back(fake_library: Path) -> None:
    said = Said(fake_library, "lost", '"state": "lost"')
    lost = said.of("GPU-fake-1")[-1]
    assert values(lost) == {}
    assert (lost["throttle_reasons"], lost["mig_enabled"]) == (None, None)
    assert said.news("GPU-fake-1") == [("info", "resolved"), ("critical", "firing")]
    assert "fell off the bus" in said.alerts[-1]["summary"]
    assert said.states("GPU-fake-0") == ["ok"]
    back = Said(fake_library, "lost", '"severity": "critical", "state": "resolved"')
    assert back.news("GPU-fake-1") == [("info", "resolved"), ("critical", "firing"), ("critical", "resolved")]


def test_a_gpu_that_the_driver_lists_no_more(fake_library: Path) -> None:
    said = Said(fake_library, "gone", "does not list it any more")
    assert said.states("GPU-fake-1") == ["ok", "lost"]
    assert values(said.of("GPU-fake-1")[-1]) == {}
    assert said.states("GPU-fake-0") == ["ok"]


def test_a_driver_that_hangs_silences_its_gpu_alone_and_not_the_exit(fake_library: Path) -> None:
    said = Said(fake_library, "hang", '"state": "silent"')
    silent = said.of("GPU-fake-1")[-1]
    assert values(silent) == {}
    assert said.news("GPU-fake-1") == [("info", "resolved"), ("critical", "firing")]
    assert "no answer within 0.5 s" in said.alerts[-1]["summary"]
    assert said.states("GPU-fake-0") == ["ok"]


def test_the_gpus_of_this_host_where_it_has_any() -> None:
    try:
        nvml = Nvml()
    except NvmlUnavailable as reason:
        pytest.skip(str(reason))
    try:
        devices, _ = nvml.devices()
        for device in devices:
            look = nvml.look(device, slow_too=True)
            total = look.readings["memory_total_bytes"]
            assert 0 <= look.readings["memory_used_bytes"] <= total
            assert total >= 2**30
            assert 0 < look.readings["temperature_c"] < 120
    finally:
        nvml.close()
