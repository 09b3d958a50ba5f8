"""What acts on any transformation: guarding, accumulating, averaging, injecting."""
