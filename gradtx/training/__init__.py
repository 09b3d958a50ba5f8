"""Training: gradients taken, updates applied, steps compiled."""
