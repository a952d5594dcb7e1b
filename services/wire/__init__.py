"""Conversion between contracts' records and protobuf messages, both ways.

Every malformed message is a typed InvalidArgument that names the field; what a message may mean is checked where it is
used (contracts' check functions), so that in-process callers are held to the same rules.
"""
