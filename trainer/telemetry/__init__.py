"""What the trainer tells: report.py and metrics.py after each step, alarms.py, phases.py and watchdog.py in between."""
