"""Test doubles and helpers for the tests of programs that use otel-assembly."""
