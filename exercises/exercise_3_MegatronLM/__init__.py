"""Exercise 3: tensor, pipeline and sequence parallelism with Megatron, and the pipeline's bubble."""
