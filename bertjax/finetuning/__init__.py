"""Fine-tuning: labelled examples, how a model answers, what is trained, and honest scores."""
