"""The kinds of tasks, one file each; `finetuning.kind` is their contract."""
