"""How the core reaches its workers: in this process, later in others."""
