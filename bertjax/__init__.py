"""bertjax: pretraining of BERT and its relatives in JAX and Flax."""
