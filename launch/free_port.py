"""Prints a TCP port of this machine that nothing listens on."""

import socket

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    print(probe.getsockname()[1])
