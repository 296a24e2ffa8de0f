"""The real scheduler in virtual time, driven by a trace, with a model of the device's step times."""

from .capacity import kv_blocks
from .device_line import ControlTimes
from .devices import DEVICES, DeviceSpec, find_device
from .fit import FittedSteps, StepSample, fit
from .history import History, RequestHistory
from .report import Objectives, Report, report_of
from .roofline import Roofline
from .run import simulate
from .step_load import StepLoad, StepTimes
from .trace import Trace, TraceRequest, clamped, scaled
from .trace_files import read_trace

__all__ = [
    "DEVICES",
    "ControlTimes",
    "DeviceSpec",
    "FittedSteps",
    "History",
    "Objectives",
    "Report",
    "RequestHistory",
    "Roofline",
    "StepLoad",
    "StepSample",
    "StepTimes",
    "Trace",
    "TraceRequest",
    "clamped",
    "find_device",
    "fit",
    "kv_blocks",
    "read_trace",
    "report_of",
    "scaled",
    "simulate",
]
