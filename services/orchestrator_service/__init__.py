"""The orchestrator service: Generate over gRPC, and the other services' clients wired in as ports."""
