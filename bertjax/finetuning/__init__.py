"""Fine-tuning on labelled examples: task types, strategies, runs over seeds, and reports."""
