"""One device and its share of the model: turns a `StepPlan` into a `StepResult`. Called by the executor."""

from minivllm.config.env import calm_openmp

calm_openmp()  # here, since everything below this package imports torch, which reads the setting once
