"""Plots as Plotly JSON."""
