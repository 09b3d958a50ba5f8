"""What is measured of a run, and settings that were: all can be had as ``gradtx.NAME`` too."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
