"""The tests: a package, since other distributions install a top-level `tests` too."""
