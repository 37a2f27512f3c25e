"""Where an experiment runs: a site's file, its alphabets, its detection."""
