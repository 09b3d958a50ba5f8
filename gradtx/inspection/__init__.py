"""Inspection: hyperparameters, slots and sizes of transformations and states."""
