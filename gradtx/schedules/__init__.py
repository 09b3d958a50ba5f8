"""Schedules: functions of the number of steps taken so far."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
