"""The engine: it lifts a rule over trees, by what the rule reads."""
