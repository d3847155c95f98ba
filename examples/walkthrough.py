"""FedWCA step by step: two rounds computed by hand and compared with a run.

The script is divided into cells (`# %%`): run all of it, or cell by cell in an editor that supports
them, or convert it to a notebook with jupytext. docs/paper.md maps equations to functions.

    python examples/walkthrough.py
"""

# %% [markdown]
# # A run to compare with
# Eight clients of four domains and two rounds: far too small to say anything about the method, with
# settings that give more than one cluster. One thread makes every bit reproducible.

# %%
import torch

import fedwca
from fedwca.core.finch import first_neighbor_clusters
from fedwca.core.params import Weights, clone, conv_layers, distance, flatten, mix
from fedwca.core.pseudo_label import mixup_partners, prototype_labels, reconcile
from fedwca.core.snd import soft_neighborhood_density
from fedwca.core.weights import alignment, benefit, cluster_weights, soft_mixture, softmax_weights
from fedwca.data import ClientData, default_cache
from fedwca.engines.client_runtime import seed_generator
from fedwca.experiments.final_models import load_experiment, load_source_model
from fedwca.experiments.inputs import load_data
from fedwca.experiments.store import RunFolder
from fedwca.methods.inference import Outputs, evaluate
from fedwca.methods.training import Targets, train

torch.set_num_threads(1)
run = fedwca.run(
    overrides={
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
)
records = {(record["round"], record["client"]): record for record in run.records()}
print(run)

# %% [markdown]
# # Server and clients
# The server has the source model and its settings; clients have unlabeled images. `view` returns
# the outputs of a model for a client's images: features [N, q] and logits [N, M].

# %%
experiment = load_experiment(run.path)
method, seed, data = experiment.method, experiment.run.seed, experiment.data
benchmark = load_data(experiment, default_cache())
clients = benchmark.clients(data.source, data.partition, seed)
model = load_source_model(run.path)
source = clone(model.feature_weights())


def view(weights: Weights, client: ClientData) -> Outputs:
    model.load_features(weights)
    return evaluate(model, client.train)


for client in clients:
    confidence = view(source, client).probabilities.amax(dim=1).mean()
    print(f"{client.name}: {len(client.train)} images, source confidence {confidence:.0%}")

# %% [markdown]
# # Round 1: each client adapts the source model
# Pseudo-labels come from prototypes: the class means of the features, weighed by the model's own
# probabilities, then the class of the nearest one. Training minimises L_IM + λ·L_CE.


# %%
def adapted_from_source(client: ClientData) -> Weights:
    outputs = view(source, client)
    labels = prototype_labels(outputs.features, outputs.probabilities).labels
    rng = seed_generator(seed, 0, client.name)
    trained, _ = train(
        model, client.train, lambda: Targets.plain(labels), method.training, rng, round=0
    )
    return trained


local = {client.name: adapted_from_source(client) for client in clients}

# %% [markdown]
# # Clusters, found once
# FINCH links every client with its nearest neighbour by the weights of the first layer, and takes
# the connected parts. A cluster's model is the mean of its clients'.

# %%
first_layer = conv_layers(source)[0]
vectors = torch.stack([flatten(state, first_layer) for state in local.values()])
clusters = dict(zip(local, first_neighbor_clusters(vectors).tolist(), strict=True))
print("clusters:", clusters)
assert clusters == run.clusters


def cluster_means(models: dict[str, Weights]) -> list[Weights]:
    members = [
        [models[name] for name in models if clusters[name] == c]
        for c in range(1 + max(clusters.values()))
    ]
    return [mix(group, [1 / len(group)] * len(group)) for group in members]


cluster_models = cluster_means(local)
C = len(cluster_models)

# %% [markdown]
# # Soft clusters
# S follows from the clients' α and β. Before the first ones arrive it is the identity, and the soft
# cluster models f̃_c are the cluster models.

# %%
S = torch.eye(C, dtype=torch.float64)
soft_models = [mix(cluster_models, row) for row in S]

# %% [markdown]
# # Round 2: α, how well features fit the classifier
# I_{k,c} is the cosine of each feature with its nearest class vector, on average; α_k is its
# softmax with temperature T_a, and f̄_k the mean of the soft cluster models by α_k.

# %%
someone = clients[-1]
w = model.classifier_weight()


def find_alpha(client: ClientData) -> torch.Tensor:
    scores = [alignment(view(soft, client).features, w) for soft in soft_models]
    return softmax_weights(torch.tensor(scores, dtype=torch.float64), method.temperature_a)


alpha = find_alpha(someone)
print(f"α of {someone.name}:", [round(share, 3) for share in alpha.tolist()])
assert alpha.tolist() == records[2, someone.name]["alpha"]

# %% [markdown]
# # β, the own cluster's model or the mean of others
# Soft neighbourhood density measures, without labels, how densely predictions cluster. The
# softmax of both densities gives β_k, and f_init = β_0·f_own + β_1·f̄_k. The resulting weight
# of every cluster model is v_k.


# %%
def find_beta(client: ClientData, merged: Weights) -> torch.Tensor:
    own = cluster_models[clusters[client.name]]
    densities = [
        soft_neighborhood_density(view(state, client).probabilities) for state in (own, merged)
    ]
    return softmax_weights(torch.tensor(densities).double(), method.temperature_b)


beta = find_beta(someone, mix(soft_models, alpha))
v = cluster_weights(alpha, beta, clusters[someone.name], S)
print(f"β of {someone.name}:", [round(share, 3) for share in beta.tolist()])
print(f"v of {someone.name}:", [round(share, 3) for share in v.tolist()])
assert beta.tolist() == records[2, someone.name]["beta"]
assert v.tolist() == run.weights[1][someone.name]

# %% [markdown]
# # Pseudo-labels of two models
# f_init and the own cluster's model each label the images. Where they differ, distances to the
# prototypes decide, and the image is mixed with a matched one of the same label. How often labels
# are right can only be computed with the true ones, which no client has.


# %%
def find_targets(init: Outputs, own: Outputs, rng: torch.Generator) -> Targets:
    first = prototype_labels(init.features, init.probabilities)
    second = prototype_labels(own.features, own.probabilities)
    labels, matched = reconcile(first, second)
    partner = mixup_partners(labels, matched, rng)
    return Targets(labels, partner, matched | (partner >= 0), method.mixup_share)


own = view(cluster_models[clusters[someone.name]], someone)
init = view(mix([cluster_models[clusters[someone.name]], mix(soft_models, alpha)], beta), someone)
labels, matched = reconcile(
    prototype_labels(init.features, init.probabilities),
    prototype_labels(own.features, own.probabilities),
)
truth = torch.tensor(benchmark.domains[someone.domain].labels[someone.train.index])
right = labels == truth
for kind, which in {"matched": matched, "mismatched": ~matched}.items():
    print(f"{kind} labels of {someone.name}: {int(which.sum())}, {int(right[which].sum())} right")
assert float(matched.double().mean()) == records[2, someone.name]["matched"]

# %% [markdown]
# # The whole second round, by hand
# Every client finds α and β, blends its start, labels and trains; the server takes the means, and
# from all α and β the benefit A of clusters for one another, B, and the next S.

# %%
alphas, betas, local = [], [], {}
for client in clients:
    alpha = find_alpha(client)
    merged = mix(soft_models, alpha)
    beta = find_beta(client, merged)
    own_model = cluster_models[clusters[client.name]]
    own = view(own_model, client)
    init = view(mix([own_model, merged], beta), client)  # which leaves f_init in the model
    rng = seed_generator(seed, 1, client.name)

    def label(init: Outputs = init, own: Outputs = own, rng: torch.Generator = rng) -> Targets:
        return find_targets(init, own, rng)

    local[client.name], losses = train(model, client.train, label, method.training, rng, round=1)
    assert losses["loss_ce"] == records[2, client.name]["loss_ce"]
    alphas.append(alpha)
    betas.append(beta)

cluster_models = cluster_means(local)
A, B = benefit(torch.stack(alphas), torch.stack(betas), torch.tensor([*clusters.values()]))
S = soft_mixture(A, B)
print("S:", [[round(share, 2) for share in row] for row in S.tolist()])

# %% [markdown]
# # Compare with the run
# The checkpoint after round 2 holds the run's cluster models and its S: both are equal to the bit.

# %%
checkpoint = RunFolder(run.path).load_checkpoint()
assert checkpoint is not None
assert checkpoint.rounds == 2
state = checkpoint.state
gap = max(distance(cluster_models[c], state.models[f"cluster/{c}"]) for c in range(C))
print("largest difference to the run's cluster models:", gap)
print("largest difference to the run's S:", float((S - state.values["S"]).abs().max()))
