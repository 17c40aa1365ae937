"""The answer bank: one module per section, right and wrong answers to every exercise."""
