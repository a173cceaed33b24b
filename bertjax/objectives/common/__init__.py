"""Functions shared by the objectives."""
