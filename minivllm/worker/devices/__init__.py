"""Facts and settings of each kind of device; the rest of the worker does not ask which one it has."""

from minivllm.worker.devices.base import Device
from minivllm.worker.devices.cpu import CpuDevice
from minivllm.worker.devices.cuda import CudaDevice

DEVICES: dict[str, type[Device]] = {"cpu": CpuDevice, "cuda": CudaDevice}
