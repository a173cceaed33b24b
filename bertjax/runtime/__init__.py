"""The environment of a run: its devices, the processes of a job, and signals."""
