"""Plots as Plotly JSON and as PNG."""
