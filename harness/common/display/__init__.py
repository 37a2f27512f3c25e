"""How numbers, words and colours are shown."""
