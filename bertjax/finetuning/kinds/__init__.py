"""The kinds of tasks, one file each; `finetuning.kind` describes their interface."""
