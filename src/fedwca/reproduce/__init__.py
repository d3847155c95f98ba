"""The tables of the paper, rebuilt from runs."""
