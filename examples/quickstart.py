"""The Python API in a minute: run two methods on the built-in benchmark and use a model.

    python examples/quickstart.py

SMALL is far too small to say anything about the methods, but gives more than one cluster; leave it
out to reproduce the README's table.
"""

import torch

import fedwca
from fedwca.data import DataRequest, default_cache, load_benchmark

SMALL = {
    "data.images_per_domain": 160,
    "data.clients_per_domain": 2,
    "source.epochs": 10,
    "source.lr": 0.01,
    "training.rounds": 2,
    "training.epochs": 2,
    "training.batch_size": 32,
    "training.lr": 0.005,
    "run.workers": 1,
}

# A finished run is loaded and an interrupted one is resumed: run this file twice.
source_only = fedwca.run(overrides={**SMALL, "method.name": "source_only"})
run = fedwca.run(overrides=SMALL)  # mini-digits and FedWCA are the defaults
print(f"source_only: accuracy {source_only.accuracy:.3f}")
print(f"fedwca: accuracy {run.accuracy:.3f}, in {run.path}")

weights = run.weights[1]  # v_k of round r = 1: shares of the clusters' models in f_init
for client, domain in run.domains.items():
    shares = ", ".join(f"{share:.2f}" for share in weights[client])
    accuracy = f"accuracy {run.accuracies[client]:.0%}"
    print(f"{client} ({domain}): cluster {run.clusters[client]}, v = {shares}; {accuracy}")

print("losses of postal/0:", [r["loss_ce"] for r in run.records() if r["client"] == "postal/0"])

# Any image of 32 × 32 pixels would do, as uint8 [N, 32, 32, 3].
request = DataRequest(None, default_cache(), images_per_domain=160)
domains = load_benchmark("mini-digits", request).domains
model, image = run.model("postal/0"), torch.tensor(domains["postal"].images[:1])
with torch.inference_mode():
    features, logits = model(run.transform(image))
confidence, predicted = logits.softmax(dim=1).max(dim=1)
print(
    f"an image of a {domains['postal'].labels[0]} is classified as {run.classes[predicted]}", end=""
)
print(f" with confidence {confidence.item():.2f}")
