"""Grafana dashboards as code: ``python -m dashboards`` writes their JSON into this folder."""
