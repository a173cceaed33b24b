"""Fine-tuning: labelled examples, kinds of tasks, what is trained, and scores over seeds."""
