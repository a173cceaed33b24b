"""The environment of a run: devices, the processes of a job, signals."""
