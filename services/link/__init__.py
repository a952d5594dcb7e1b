"""The short way between services on one machine: frames over a Unix socket, for the calls that every round makes.

gRPC stays the interface of every service. A service that is given a link directory also listens on a socket there, and a
client with the same directory sends its per-round messages (the contracts' own records, services/link/codec.py) through it
while it is up, and over gRPC otherwise. After a target pass has emptied the processor's caches, a call through gRPC's
stack costs about a millisecond and one through a socket a few tenths (docs/decisions/0009-links.md).
"""
