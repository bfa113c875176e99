"""What the trainer tells: report.py, metrics.py and samples.py after each step, alarms.py, phases.py and watchdog.py in between; status.py reads it."""
