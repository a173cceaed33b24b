"""The commands, one per file: `bertjax VERB` runs `commands/VERB.py`."""
