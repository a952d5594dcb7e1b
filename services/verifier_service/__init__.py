"""The verifier service: a front process that speaks gRPC and an engine process that runs the target.

No event loop shares a process with the target's threads: beside them a round trip's 99th percentile rises from under one
millisecond to about nine (docs/decisions). The front passes serialised messages on without reading them.

    client ── gRPC ── front (event loop) ── socket pair, frames ── engine process (reader thread, pass loop)
"""
