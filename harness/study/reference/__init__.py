"""References: a list of variants that is run, stored, compared with later runs, answered from and handed out."""
