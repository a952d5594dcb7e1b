"""The ports over gRPC. Calls raise contracts' errors only, and pick a restarted peer up again on their own."""
