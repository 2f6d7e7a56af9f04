"""The example project: settings and URLs."""
