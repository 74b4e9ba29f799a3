"""The route of llama.cpp's server that editors ask: `/infill`."""
