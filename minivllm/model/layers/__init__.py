"""Building blocks of the families. They hold weights and call the ops of the device; no op is written here."""
