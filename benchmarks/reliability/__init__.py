"""What the library promises of failures, each promise tried by one command: docs/reliability.md."""
