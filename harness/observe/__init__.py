"""What is loaded into a rank's process to know its steps, phases, lines and recordings; it never changes a result.

Python 3.8 and its standard library; PyTorch where the training itself has imported it.
"""
