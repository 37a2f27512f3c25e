"""The parts of the documents that are written from declarations, each between two comments:

<!-- written: NAME -->
<!-- end -->
"""
