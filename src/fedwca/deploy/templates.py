"""Texts that `fedwca deploy` writes: start scripts, systemd units, a first run, the Flower app."""

__all__ = ["FLOWER_APP", "RUN_TOML", "SERVER_SCRIPT", "SERVER_UNIT", "SITE_SCRIPT", "SITE_UNIT"]

RUN_TOML = """\
# A run over all sites. Edit this file, then: fedwca deploy run run.toml

[data]
benchmark = "images"
image_size = 256              # size of the stored images; the network sees a crop of 7/8

[model]
backbone = "resnet18"

[source]
weights = "source.safetensors"    # a model file with class names, from any run of fedwca

[method]
name = "fedwca"
rounds_between_weights = 5    # send two models per site in most rounds, not one per cluster

[training]
rounds = 20

[deploy]
least_sites = 2               # replies that a round needs
start_seconds = 600           # wait for all sites before the first round
round_seconds = 3600          # close a round with the replies received so far
return_seconds = 90           # wait for a lost site to reconnect
wire = "float32"              # "float16" halves the traffic
"""

SERVER_SCRIPT = """\
#!/bin/sh
# Start the server: ./start.sh. FEDWCA may hold the path of the fedwca command.
HERE="$(cd "$(dirname "$0")" && pwd)"
exec "${FEDWCA:-fedwca}" deploy server --folder "$HERE" "$@"
"""

# {site}: the site's name
SITE_SCRIPT = """\
#!/bin/sh
# Start this site: ./start.sh /path/to/images [OPTIONS of fedwca deploy client]
# DATA may hold the folder of images, FEDWCA the path of the fedwca command.
HERE="$(cd "$(dirname "$0")" && pwd)"
DATA="${{1:-${{DATA:?set it to the folder of images, or run ./start.sh /path/to/images}}}}"
[ $# -gt 0 ] && shift
exec "${{FEDWCA:-fedwca}}" deploy client --site {site} --folder "$HERE" --data "$DATA" "$@"
"""

_UNIT = """\
# Copy this folder to /etc/fedwca, adapt the paths below, copy this file to /etc/systemd/system,
# then: systemctl enable --now {unit}
[Unit]
Description=fedwca {role}
After=network-online.target
Wants=network-online.target

[Service]
# Use a dedicated account{access}.
User=fedwca
Environment=FEDWCA=/opt/fedwca/bin/fedwca
{environment}ExecStart=/etc/fedwca/start.sh
Restart=on-failure
RestartSec=5
# Exit code 2: a mistake in the settings, which a restart does not fix.
RestartPreventExitStatus=2

[Install]
WantedBy=multi-user.target
"""

SERVER_UNIT = _UNIT.format(unit="fedwca-server", role="server", access="", environment="")

# {site}: the site's name
SITE_UNIT = _UNIT.format(
    unit="fedwca-site-{site}",
    role="site {site}",
    access=" that can read the images and nothing else",
    environment="Environment=DATA=/path/to/images\n",
)

# `flwr run` requires a project folder. It only names the app, which is installed with fedwca.
FLOWER_APP = {
    "LICENSE": "Apache License 2.0, as fedwca.\n",
    "fedwca_app.py": '''\
"""The Flower app that is installed with fedwca."""

from fedwca.flower_app import client_app, server_app

__all__ = ["client_app", "server_app"]
''',
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedwca-app"
version = "1.0.0"
description = "Federated source-free domain adaptation"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "fedwca"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "fedwca_app:server_app"
clientapp = "fedwca_app:client_app"
""",
}
