"""A generative adversarial network: discriminator and generator, each with its own optimizer."""
