"""How messages travel between the engine's process and the core's: encoding, sockets, frames on a pipe."""
