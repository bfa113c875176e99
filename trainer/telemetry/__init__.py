"""What the trainer tells: report.py, metrics.py and samples.py after each step, in the numbers of record.py; alarms.py, phases.py and watchdog.py in between; status.py reads it."""
