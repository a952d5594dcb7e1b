"""The proposer service: several sources of candidates behind one endpoint."""
