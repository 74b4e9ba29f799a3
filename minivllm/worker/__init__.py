"""One device and its share of the model: turns a `StepPlan` into a `StepResult`. Called by the executor."""
