"""The engine: it lifts a rule over trees, according to what the rule reads."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
