"""The generate loop, the round transaction, source policy, gathering under a deadline and recovery.

It speaks to verifiers, proposers and retrievers through contracts' ports alone: no torch, no gRPC.
"""
