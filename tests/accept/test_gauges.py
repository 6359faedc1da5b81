"""What NVML reports, or does not: drivers that lack calls, NVLink 5, a lost GPU."""

from types import SimpleNamespace

import pytest

from gpunode.accept.gauges import Gauges, Lost, Sampler, mig_devices, summary
from gpunode.deviceplugin.nvml import Nvml, NVMLError

INVALID = NVMLError(Nvml.NVML_ERROR_INVALID_ARGUMENT)


class Old:
    """A driver that knows the calls of `answers` and no other."""

    NVMLError = NVMLError

    def __init__(self, **answers) -> None:
        self.answers = answers

    def __getattr__(self, name):
        if name.startswith("NVML_"):
            return getattr(Nvml, name)

        def call(_gpu, *arguments):
            answer = self.answers.get(name, NVMLError(Nvml.NVML_ERROR_FUNCTION_NOT_FOUND))
            answer = answer(*arguments) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def test_what_an_old_driver_does_not_know_has_its_reason():
    """Each figure for itself."""
    gauges = Gauges(Old(nvmlDeviceGetRemappedRows=(1, 0, 0, 0), nvmlDeviceGetEnforcedPowerLimit=250000), 0)
    figures = gauges.state() | gauges.counters() | gauges.link() | gauges.load()
    assert {name: value for name, value in figures.items() if value is not None} == {
        "remapped_rows": {"corrected": 1, "uncorrected": 0, "pending": False, "failed": False},
        "power_limit_w": 250.0,
    }
    assert {name for name, value in figures.items() if value is None} == set(gauges.reasons)
    assert set(gauges.reasons.values()) == {"NVML: Function Not Found"}


def test_nvlink_5_has_its_errors_in_fields():
    """The counters of older links are gone there; a field that is not supported is left out."""

    def fields(asked):
        return [
            SimpleNamespace(nvmlReturn=0 if number == 208 else 3, value=SimpleNamespace(ullVal=10 + link))
            for number, link in asked
        ]

    def state(link):
        return 1 if link < 2 else INVALID

    gauges = Gauges(Old(nvmlDeviceGetNvLinkState=state, nvmlDeviceGetFieldValues=fields), 0)
    assert gauges.counters()["nvlink_errors"] == 10 + 11
    assert gauges.state()["nvlink_active"] == 2
    assert "nvlink_errors" not in gauges.reasons


def test_a_disabled_nvlink_hides_none_behind_it():
    """As go-nvlib goes on where a link, or a slot for a MIG device, has no answer."""
    off = NVMLError(Nvml.NVML_ERROR_NOT_SUPPORTED)
    links = [off, 1, 1, off, 1, 0]
    nvml = Old(nvmlDeviceGetNvLinkState=lambda link: [*links, *[INVALID] * 30][link])
    figures = Gauges(nvml, 0).state()
    assert (figures["nvlink_active"], figures["nvlink_inactive"]) == (3, 1)


def test_an_empty_slot_hides_no_mig_device():
    slots = [INVALID, "first", NVMLError(Nvml.NVML_ERROR_NOT_FOUND), "second"]
    nvml = Old(nvmlDeviceGetMigMode=(1, 1), nvmlDeviceGetMaxMigDeviceCount=4)
    nvml.answers["nvmlDeviceGetMigDeviceHandleByIndex"] = slots.__getitem__
    assert list(mig_devices(nvml, 0)) == ["first", "second"]


def test_a_lost_gpu_is_no_missing_figure():
    """In any call."""
    lost = NVMLError(Nvml.NVML_ERROR_GPU_IS_LOST, "GPU is lost")
    with pytest.raises(Lost, match="GPU is lost"):
        Gauges(Old(nvmlDeviceGetTemperature=lost), 0).load()
    with pytest.raises(Lost):
        Gauges(Old(nvmlDeviceGetNvLinkState=lost), 0).state()


def test_a_stage_that_is_shorter_than_an_interval_is_read_once():
    """And what was lost meanwhile shows at its end."""
    reading = {"temperature_c": 60, "power_w": 300.0, "sm_mhz": 1700, "throttle": 0x4 | 0x1}
    load = Sampler(lambda: reading)
    with load.running():
        pass
    figures = summary(Sampler(None), load)
    assert (figures["sm_mhz"], figures["throttle"], figures["pcie_width"]) == (1700, ["sw_power_cap"], None)

    def gone():
        raise Lost("GPU is lost")

    with pytest.raises(Lost), Sampler(gone).running():
        pass
