"""Schedules: functions of the number of steps taken so far."""
