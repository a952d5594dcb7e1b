"""Draft heads: one family a file, one protocol, one checkpoint format, one source."""
