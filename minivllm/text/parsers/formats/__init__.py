"""One file for each model family: how it writes thoughts and calls, and how its chat template is recognized."""
