"""The process around a run: devices, members of a job, signals."""
