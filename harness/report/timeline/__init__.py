"""The timeline of a page: read from the page data, made into process tracks, encoded."""
