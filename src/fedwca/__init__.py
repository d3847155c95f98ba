"""Federated source-free domain adaptation: FedWCA and its rivals."""
