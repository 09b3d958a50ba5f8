"""Many devices: aggregation, compression, sharded state, infrequent communication."""
