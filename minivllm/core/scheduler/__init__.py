"""Which tokens of which requests the next step computes. No torch, no clock but for stamps, no knowledge of the model."""
