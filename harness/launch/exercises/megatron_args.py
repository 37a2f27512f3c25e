"""Exercise 3 with `--engine megatron-lm`: the experiment as arguments of Megatron-LM's own pretrain_gpt.py.

Pure; knows Megatron-LM's flag names (core 0.13 of the NeMo 25.07 container) and no launcher, site or path of a run.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.experiment.exercises import Megatron
from harness.experiment.model import Model

PRETRAIN_GPT = "/opt/megatron-lm/pretrain_gpt.py"  # where the NeMo container keeps it

_FIXED = (
    "--use-mcore-models",
    *("--transformer-impl", "transformer_engine"),
    # The architecture that Llama, Mistral and Mixtral share.
    *("--normalization", "RMSNorm"),
    *("--position-embedding-type", "rope"),
    "--swiglu",
    "--disable-bias-linear",
    *("--attention-dropout", "0.0"),
    *("--hidden-dropout", "0.0"),
    *("--init-method-std", "0.02"),
    # The workshop's data parallelism.
    "--use-distributed-optimizer",
    "--overlap-grad-reduce",
    "--overlap-param-gather",
    *("--lr", "3.0e-4"),
    *("--min-lr", "3.0e-5"),
    *("--lr-decay-style", "cosine"),
    *("--weight-decay", "0.1"),
    *("--adam-beta2", "0.95"),
    *("--clip-grad", "1.0"),
    *("--split", "100,0,0"),
    *("--eval-iters", "0"),
    *("--log-interval", "1"),
    "--log-throughput",
    "--no-create-attention-mask-in-dataloader",  # attention is causal by its kernel; a mask would be copied for nothing
)


def pretrain_gpt_argv(asked: Megatron, model: Model, *, profile: bool, mock_data: bool) -> list[str]:
    """The script and its arguments, for torchrun.

    Args:
        asked: resolved: processes per node, tensor-parallel size, batch sizes and sequence length are set.
        model: the sizes to train.
        profile: call cudaProfilerStart and Stop around the window, for the nsys that waits for them.
        mock_data: train on Megatron's generated data; else the caller adds `--data-path PREFIX`.
    """
    argv = [PRETRAIN_GPT, *_architecture(asked, model), *_parallelism(asked), *_batches(asked), *_FIXED]
    if asked.in_bf16:
        argv.append("--bf16")
    if asked.activation_checkpointing:
        argv += ["--recompute-granularity", "full", "--recompute-method", "uniform"]
        argv += ["--recompute-num-layers", "1"]
    if model.num_local_experts > 1:
        argv += _experts(asked, model)
    if profile:
        argv += _profile(asked)
    if mock_data:
        argv.append("--mock-data")
    return argv


def _architecture(asked: Megatron, model: Model) -> Iterator[str]:
    sizes: dict[str, int | float | None] = {
        "--num-layers": model.num_hidden_layers,
        "--hidden-size": model.hidden_size,
        "--ffn-hidden-size": model.intermediate_size,
        "--num-attention-heads": model.num_attention_heads,
        "--num-query-groups": model.num_key_value_heads,
        "--kv-channels": model.head_dim,
        "--norm-epsilon": model.rms_norm_eps,
        "--rotary-base": int(model.rope_theta),
        "--seq-length": asked.seq_length,
        "--max-position-embeddings": asked.seq_length,
        # The null tokenizer adds an end-of-document token to this size. The data holds ids, not text.
        "--vocab-size": model.vocab_size - 1,
        "--make-vocab-size-divisible-by": 1,
    }
    yield from _words(sizes)
    yield from ("--group-query-attention", "--tokenizer-type", "NullTokenizer")
    if not model.tie_word_embeddings:
        yield "--untie-embeddings-and-output-weights"


def _parallelism(asked: Megatron) -> Iterator[str]:
    tp = asked.tp or 1
    yield from _words(
        {
            "--tensor-model-parallel-size": tp,
            "--pipeline-model-parallel-size": asked.pp,
            "--context-parallel-size": asked.cp,
        }
    )
    if asked.vpp > 1:
        yield from ("--num-virtual-stages-per-pipeline-rank", str(asked.vpp))
    if tp > 1:
        yield "--sequence-parallel"


def _batches(asked: Megatron) -> Iterator[str]:
    yield from _words(
        {
            "--micro-batch-size": asked.micro_batch_size,
            "--global-batch-size": asked.global_batch_size,
            "--train-iters": asked.steps or asked.window.end,
            "--seed": asked.seed,
        }
    )


def _experts(asked: Megatron, model: Model) -> list[str]:
    return [
        *("--num-experts", str(model.num_local_experts)),
        *("--moe-router-topk", str(model.num_experts_per_tok)),
        *("--moe-router-load-balancing-type", "aux_loss"),
        *("--moe-aux-loss-coeff", "1e-2"),
        *("--moe-token-dispatcher-type", "alltoall"),
        "--moe-grouped-gemm",
        *("--expert-model-parallel-size", str(asked.ep)),
    ]


def _profile(asked: Megatron) -> list[str]:
    ranks = map(
        str, range(asked.world_size or 1)
    )  # every rank: nsys watches a node, and each node has some of them
    steps = ["--profile-step-start", str(asked.window.start), "--profile-step-end", str(asked.window.end)]
    return ["--profile", *steps, "--profile-ranks", *ranks]


def _words(values: dict[str, int | float | None]) -> Iterator[str]:
    for flag, value in values.items():
        if value is not None:
            yield from (flag, str(value))
