"""The pytest plugin: its fixtures are there wherever otel-assembly is installed."""
