"""The programs of the ranks of a training: what each launches, computes and waits for."""

from __future__ import annotations

from functools import partial

from .program import (
    AUTOGRAD,
    COMM,
    COMPUTE,
    COPY,
    MAIN,
    US,
    Begin,
    Call,
    Compute,
    End,
    Fetch,
    Follow,
    Instruction,
    Launch,
    Message,
    Program,
    Record,
    Thread,
    Wait,
    Work,
)
from .start import cold_pass, start_up
from .training import Training

PRODUCTS = {
    "bf16": "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "tf32": "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_execute_kernel",
    "fp32": "ampere_sgemm_128x64_nn",
}
_SLOWER = {"bf16": 1.0, "tf32": 1.5, "fp32": 2.0}
_TO_LAST = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(cudnn::ops::nchw2nhwc_params_t<float>)"
_TO_FIRST = "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false>(cudnn::ops::nhwc2nchw_params_t<float>)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>()"


class Rank:
    """Builds the program of one rank of a data-parallel training."""

    def __init__(self, training: Training, rank: int) -> None:
        self.t, self.rank, self.step, self.slot = training, rank, 0, 0
        self.do: list[Instruction] = []
        self.everyone = tuple(range(training.ranks))
        self.group = self.everyone  # that has the same parameters
        self.layers = training.layers
        self._sent: dict[object, int] = {}

    def program(self) -> Program:
        """All its instructions."""
        self.do += [Begin("range", self.t.around)] * bool(self.t.around)
        self.do += start_up(self.t, self.rank)
        for step in range(self.t.steps):
            self.step, self.slot = step, 0
            self.do += [Begin("step", f"{self.step}")] * self.t.marked
            self.python("train.py(120): train_step")
            self.one_step()
            self.python_end()
            self.do += [End()] * self.t.marked
            self.host_work("between")
        self.do.append(Wait("cudaDeviceSynchronize"))
        self.do += [End()] * bool(self.t.around)
        return self.do

    def one_step(self) -> None:
        """Data, forward and backward of each micro-batch, the optimizer, and what belongs to some steps."""
        self.data()
        for micro_batch in range(self.t.micro_batches):
            self.copy_batch()
            self.forward()
            last = micro_batch == self.t.micro_batches - 1
            self.backward(reduces=self.updates() and (last or self.t.reduce_each))
        if self.updates():
            self.optimizer()
        self.at_the_end()

    def updates(self) -> bool:
        """Whether this step ends with an update of the parameters."""
        return self.step % self.t.update_every == self.t.update_every - 1

    # ---- spans ----

    def python(self, name: str) -> None:
        """A Python function begins, if they are recorded."""
        if self.t.stacks:
            self.do.append(Begin("python", name))

    def python_end(self) -> None:
        if self.t.stacks:
            self.do.append(End())

    def phase(self, name: str) -> None:
        """A range begins; what torch itself marks is there in any case."""
        workers = self.t.slow_workers if self.t.has_slow_loads(self.rank) else self.t.workers
        loader = "_MultiProcessing" if workers else "_SingleProcess"
        own = {
            "data": f"enumerate(DataLoader)#{loader}DataLoaderIter.__next__",
            "optimizer": "Optimizer.step#AdamW.step",
        }
        marked = {"data": f"DataLoad batch {self.step}", "optimizer": "optimizer_step"}
        if self.t.ranges:
            self.do.append(Begin("range", marked.get(name, name)))
        if name in own:
            self.do.append(Begin("torch", own[name]))

    def phase_end(self, name: str) -> None:
        self.do += [End()] * (self.t.ranges + (name in ("data", "optimizer")))

    # ---- work ----

    def factor(self, phase: str) -> float:
        """How much longer a kernel of this rank takes."""
        own = self.t.slower.get(self.rank, 1.0)
        more = self.t.work * self.t.more_work.get(self.rank, 1.0)
        return own * (more if phase in ("forward", "backward") else 1.0)

    def kernel(
        self, operator: str, name: str, ns: int, phase: str, *, call: str = "cudaLaunchKernel", stream: int = COMPUTE
    ) -> None:
        """One kernel, or `split` smaller ones of the same time together."""
        t = self.t
        self.slot += 1
        ns = round(ns * self.factor(phase) * t.noise(self.rank, self.step, self.slot, 0.01))
        parts = t.split if phase in ("forward", "backward") else 1
        new = t.first_use_ns and self.step == 3 and phase == "forward"
        name = name + "<3>" if new else name
        first_ns = t.start.cold.launch_ns if t.start else 0
        hold = (t.first_use_ns if new else first_ns) if name not in self._sent else 0
        self._sent.setdefault(name, 1)
        for part in range(parts):
            before = round(t.python_ns * t.noise(self.rank, self.step, self.slot * 64 + part, 0.2))
            make = partial(Work, name, stream, max(ns // parts, 1500))
            self.do.append(Launch(make, call, t.launch_ns + hold, operator, before, US))

    def host_work(self, place: str) -> None:
        """Planted work of the host."""
        for work in self.t.host_work:
            hit = (work.ranks is None or self.rank in work.ranks) and self.step % work.every == work.every - 1
            if work.place == place and hit:
                self.python(work.function)
                self.do.append(Compute(work.ns))
                self.python_end()

    def copy(
        self,
        size: int,
        direction: str,
        memory: str,
        gb_per_s: float,
        *,
        stream: int = COMPUTE,
        operator: str = "aten::copy_",
    ) -> None:
        """A copy between host and device; pageable memory goes through a buffer, so the call waits for it."""
        ns = round(size / gb_per_s) + 2 * US
        make = partial(Work, f"Memcpy {direction}", stream, ns, "copy", size, direction, memory)
        blocks = memory == "pageable"
        self.do.append(Launch(make, "cudaMemcpyAsync", 5 * US, operator, 4 * US, US, blocks))

    def data(self) -> None:
        self.phase("data")
        self.python("torch/utils/data/dataloader.py(700): __next__")
        self.do.append(Fetch(self.step, self.t.fetch_ns))
        self.host_work("data")
        self.python_end()
        self.phase_end("data")

    def copy_batch(self) -> None:
        t = self.t
        self.python("train.py(60): to_device")
        if t.pageable_bytes:
            self.copy(round(t.work * t.pageable_bytes), "HtoD", "pageable", 5.0, operator="aten::copy_")
        else:
            self.copy(round(t.work * t.batch_bytes), "HtoD", "pinned", 24.0)
        self.python_end()

    def forward(self) -> None:
        self.phase("forward")
        self.host_work("forward")
        for layer in range(self.layers):
            self.python("model.py(40): forward")
            self.before_layer(layer, "forward")
            self.do += cold_pass(self.t, self.step, layer)
            self.layer(layer, "forward")
            self.python_end()
        if self.t.logits_bytes:
            self.gather_logits()
        self.phase_end("forward")

    def gather_logits(self) -> None:
        """What the ranks' parts of the output layer made, gathered on all of them."""
        self.do.append(Begin("range", "lm_head"))
        self.do += [Record("logits", COMPUTE), Follow(COMM, "logits")]
        self.send("all_gather", self.everyone, self.t.logits_bytes)
        self.do += [Record("all logits", COMM), Follow(COMPUTE, "all logits"), End()]

    def layer(self, layer: int, phase: str) -> None:
        """The kernels of one layer; in backward each product is two."""
        t = self.t
        product = PRODUCTS[t.precision]
        ns = round(t.kernel_ns * _SLOWER[t.precision])
        for name, of in (
            ("aten::native_layer_norm", NORM),
            ("aten::linear", product),
            ("aten::add", ADD),
            ("aten::linear", product),
        ):
            times = 2 if phase == "backward" and of == product else 1
            operator = (
                f"autograd::engine::evaluate_function: {name.split('::')[1]}Backward0" if phase == "backward" else name
            )
            for _ in range(times):
                if t.layout_ns and of == product:
                    self.kernel(operator, _TO_LAST, t.layout_ns, phase)
                self.kernel(operator, of, ns if of == product else max(t.kernel_ns // 8, 2 * US), phase)
                if t.layout_ns and of == product:
                    self.kernel(operator, _TO_FIRST, t.layout_ns, phase)
        if t.allocations_ns and phase == "forward":
            self.do.append(Call("cudaMalloc", t.allocations_ns))
            self.do.append(Call("cudaFree", t.allocations_ns // 2, after_device=True))
        if t.sync_layers:
            self.do.append(Wait("cudaDeviceSynchronize"))

    def before_layer(self, layer: int, phase: str) -> None:
        """Parameters that are in host memory, or that other ranks have."""
        t = self.t
        if t.offload_gb_per_s:
            self.copy(t.layer_bytes, "HtoD", "pinned", t.offload_gb_per_s, stream=COPY)
            self.do.append(Record("copied", COPY))
            self.do.append(Follow(COMPUTE, "copied"))
        if t.kind == "sharded":
            if layer == self.first(phase):
                self.gather(layer, phase)
            ahead = layer + (1 if phase == "forward" else -1)
            if 0 <= ahead < self.layers:
                self.gather(ahead, phase)
            self.do.append(Follow(COMPUTE, ("gathered", layer)))

    def first(self, phase: str) -> int:
        """The layer with which a phase begins."""
        return 0 if phase == "forward" else self.layers - 1

    def gather(self, layer: int, phase: str) -> None:
        self.send("all_gather", self.group, self.t.layer_bytes)
        self.do.append(Record(("gathered", layer), COMM if not self.t.one_stream else COMPUTE))

    def backward(self, reduces: bool) -> None:
        t = self.t
        self.phase("backward")
        self.python("torch/autograd/__init__.py(300): backward")
        self.do.append(Thread(AUTOGRAD))
        filled = 0
        for layer in reversed(range(self.layers)):
            self.before_layer(layer, "backward")
            if layer == self.layers // 2:
                self.in_backward()
            self.layer(layer, "backward")
            if not reduces and t.kind != "sharded":
                continue
            filled += 1
            if filled == (1 if t.tiny_buckets or t.kind == "sharded" else t.bucket_layers) or not layer:
                self.reduce(filled)
                filled = 0
        if t.kind in ("ddp", "sharded") and t.ranks > 1 and not t.one_stream:
            self.do.append(Record("reduced", COMM))
            self.do.append(Follow(COMPUTE, "reduced"))
        self.do.append(Thread(MAIN))
        self.python_end()
        self.phase_end("backward")

    def in_backward(self) -> None:
        """Work of the host in the middle of the backward pass."""
        for work in self.t.host_work:
            if (
                work.place == "backward"
                and (work.ranks is None or self.rank in work.ranks)
                and self.step % work.every == work.every - 1
            ):
                self.do.append(Begin("operator", "autograd::engine::evaluate_function: CustomFunctionBackward"))
                self.do.append(Compute(work.ns))
                self.do.append(End())

    def reduce(self, layers: int) -> None:
        """The gradients of some layers."""
        t = self.t
        if len(self.group) < 2 or t.kind == "alone":
            return
        kind = "reduce_scatter" if t.kind == "sharded" else "all_reduce"
        for _ in range(max(t.tiny_buckets, 1)):
            self.send(kind, self.group, t.layer_bytes * layers // max(t.tiny_buckets, 1))

    def send(self, kind: str, members: tuple[int, ...], size: int, stream: int = COMM) -> None:
        """A collective on a stream of its own, after what the compute stream has got so far."""
        t = self.t
        stream = COMPUTE if t.one_stream else stream
        number = self._sent[kind, members] = self._sent.get((kind, members), 0) + 1
        n = len(members)
        share = (2 if kind == "all_reduce" else 1) * (n - 1) / n
        ns = t.message_ns + round(size * share / t.gb_per_s)
        # what is gathered was there before; what is reduced has just been made
        if stream != COMPUTE and kind != "all_gather":
            self.do.append(Record("made", COMPUTE))
            self.do.append(Follow(stream, "made"))
        message = Message((kind, members, number), kind, members, size // 2, "BFloat16", "".join(map(str, members)), ns)
        name = {
            "all_reduce": "AllReduce_Sum_bf16_RING_LL",
            "all_gather": "AllGather_RING_LL",
            "reduce_scatter": "ReduceScatter_Sum_bf16_RING_LL",
            "broadcast": "Broadcast_RING_LL",
        }[kind]
        make = partial(Work, f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)", stream, 0, message=message)
        self.do.append(Launch(make, "cudaLaunchKernelExC", t.launch_ns, f"nccl:{kind}", 8 * US, 2 * US))

    def optimizer(self) -> None:
        t = self.t
        self.phase("optimizer")
        self.host_work("optimizer")
        for _ in range(t.optimizer_kernels):
            self.kernel("aten::_fused_adamw_", ADAM, t.kernel_ns, "optimizer")
        self.phase_end("optimizer")

    def at_the_end(self) -> None:
        """What follows the optimizer."""
        t = self.t
        if t.extra_gather:
            self.send("all_gather", self.everyone, t.extra_gather)
            self.do.append(Record("extra", COMM))
            self.do.append(Follow(COMPUTE, "extra"))
        if t.blocking_outputs:
            self.python("train.py(140): keep_outputs")
            self.copy(t.blocking_outputs, "DtoH", "pageable", 5.0)
            self.do.append(Wait("cudaStreamSynchronize", COMPUTE))
            self.python_end()
        if t.item_every and self.step % t.item_every == t.item_every // 2:
            self.item()
        if t.collect_ns and self.step % t.collect_every == t.collect_every - 1:
            self.do.append(Begin("collector", ""))
            self.do.append(Compute(t.collect_ns))
            self.do.append(End())
        if t.evaluate_every and self.step % t.evaluate_every == t.evaluate_every - 1:
            self.evaluate()
        if t.checkpoint_ns and self.step % t.checkpoint_every == t.checkpoint_every - 1:
            self.python("train.py(160): save_checkpoint")
            self.python("torch/serialization.py(700): save")
            self.copy(t.checkpoint_bytes, "DtoH", "pageable", 5.0)
            self.do.append(Compute(t.checkpoint_ns))
            self.python_end()
            self.python_end()

    def evaluate(self) -> None:
        """Forward passes that nothing is trained with, with a batch of their own where all ranks do it."""
        t = self.t
        if self.rank and not t.evaluate_all:
            return
        self.python("train.py(150): evaluate")
        self.do += [Begin("range", "evaluation")] * t.ranges
        if t.evaluate_all:
            self.copy_batch()
        self.forward()
        self.do += [End()] * t.ranges
        self.python_end()

    def item(self) -> None:
        """Read the loss."""
        self.python("train.py(130): log_loss")
        make = partial(Work, "Memcpy DtoH", COMPUTE, 1500, "copy", 4, "DtoH", "pageable")
        self.do.append(Begin("operator", "aten::item"))
        self.do.append(Begin("operator", "aten::_local_scalar_dense"))
        self.do.append(Launch(make, "cudaMemcpyAsync", 5 * US, "", 2 * US))
        self.do.append(Wait("cudaStreamSynchronize", COMPUTE))
        self.do += [End(), End()]
        self.python_end()
