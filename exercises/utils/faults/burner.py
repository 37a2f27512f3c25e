"""The side process of `noisy-neighbour`: uses a core without end. Standard library only, so that it starts at once."""

if __name__ == "__main__":
    while True:
        pass
