"""Experiments: arms x loads x seeds from one YAML file, run in processes, as Parquet and as a report."""
