"""The REST index: segments, suffix search, continuation tries, releases, their store, live segments and placement.

No torch, no gRPC: the servicer, the command line and the Ray job in services/ call what is here.
"""
