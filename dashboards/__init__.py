"""Grafana dashboards, written as code: ``python -m dashboards`` writes their JSON beside this file."""
