"""The timeline of a page: condensed, drawn as process tracks, encoded."""
