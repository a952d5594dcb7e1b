"""Work that is spread over a Ray cluster. Nothing else in the project imports ray."""
