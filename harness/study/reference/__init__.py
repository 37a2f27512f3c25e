"""References: a list of variants run, kept, held against later runs, answered from and handed out."""
