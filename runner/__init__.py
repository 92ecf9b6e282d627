"""The file that runs beside a job; see quarterdeck_runner.py."""
