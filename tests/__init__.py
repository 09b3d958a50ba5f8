"""The tests. A package, since others install one of this name without a guard."""
