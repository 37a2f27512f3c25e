"""Commands that read traces: report, compare, export, what-if."""
