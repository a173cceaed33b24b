"""A family and an objective that live outside bertjax."""
