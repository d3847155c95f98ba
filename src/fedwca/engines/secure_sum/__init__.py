"""Secure aggregation: the server gets sums of models and sees none of them."""
