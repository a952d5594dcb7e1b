"""The shared language of the services: frozen records and pure functions over them, numpy at most, no I/O."""
