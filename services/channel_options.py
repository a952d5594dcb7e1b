"""gRPC's knobs, the same at both ends."""

from __future__ import annotations

from typing import Any

MAX_MESSAGE_BYTES = 32 << 20

_SIZES: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_SIZES,
    # Two servers on one port would share its calls silently; the second must fail to start instead.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

CLIENT_OPTIONS: list[tuple[str, Any]] = [
    *_SIZES,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The defaults (1 s rising to 2 minutes) would leave a restarted peer unused long after it is back.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
]
