"""What a run will take, before it is paid for: memory, FLOPs, traffic, time and money."""
