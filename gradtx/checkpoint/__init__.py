"""Checkpoints: configurations and states as data, and states that fit others."""
