"""The built-in formats of transcripts, one module per format; `pyproject.toml` lists them as entry points."""

__all__: list[str] = []
