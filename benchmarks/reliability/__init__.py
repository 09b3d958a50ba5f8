"""What the library promises about failures, each tried by one command: docs/reliability.md."""
