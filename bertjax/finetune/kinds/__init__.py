"""The kinds of tasks, one file each; `finetune.kind` is their contract."""
