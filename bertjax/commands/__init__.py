"""One verb a file: `bertjax VERB` calls `commands/VERB.py`."""
