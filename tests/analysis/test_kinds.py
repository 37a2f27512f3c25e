"""A kernel's kind comes from its name, in every naming era, and what no rule knows is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.analysis.process import kinds
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import Device, Window
from harness.common.errors import RequestError
from harness.traces.trace import Activity, CopyKind
from tests.analysis.cpu_operators import EXPECTED
from tests.analysis.measuring import RULES, part_of
from tests.synthetic.columns import GEMM, Made


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "ncclKernel_Generic_1",
        "void rccl::AllReduceKernel<float>()",
        "void deep_ep::intranode::dispatch<8, 768>(void*)",
        "void ep::internode_ll::combine<false>(void*)",
        "nvshmem_barrier_kernel",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>()",
        "gloo:all_reduce",
    ],
)
def test_communication_is_known_in_every_era_of_every_library(name: str) -> None:
    assert RULES.of_name(name) == "communication"


@pytest.mark.parametrize(
    ("name", "kind", "precision"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", "gemm", "bf16"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_tn", "gemm", "fp16"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>()", "gemm", "tf32"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "gemm", "fp8"),
        ("volta_sgemm_128x64_nn", "gemm", "fp32"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "gemm", "bf16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "gemm", "fp16"),
        ("nvjet_sm90_tst_192x192_64x3_2x1_v_bz_coopB_NTN", "gemm", "bf16"),
        ("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", "gemm", "bf16"),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", "gemm", "fp8"),
        ("nvjet_sm90_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "gemm", "fp16"),
        ("nvjet_sm100_sss_128x128_32x4_1x2_h_bz_NTN", "gemm", "tf32"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::bfloat16_t>>()", "attention", "bf16"),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(AttentionKernel)", "attention", "fp16"),
        # cuDNN: f16 is bf16 as well
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x64x64_4x1x1_kernel0_0",
            "attention",
            None,
        ),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_bprop_f16_knob_3_64x64x64_4x1x1_kernel0_0", "attention", None),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(float*)", "attention", None),
        ("void cudnn::fusion::convert_dq_to_16bits<true, 64>(float*)", "attention", None),
        ("void at::native::vectorized_layer_norm_kernel<float, float>(int)", "normalisation", None),
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<>()", "normalisation", None),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>()", "optimizer", None),
        ("void at::native::embedding_backward_feature_kernel<float>()", "embedding", None),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>()", "elementwise", None),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()", "elementwise", None),
        ("triton_poi_fused_add_mul_0", "elementwise", None),
        ("aten::addmm", "gemm", None),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention", None),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention", None),
        ("aten::native_layer_norm", "normalisation", None),
        ("aten::_fused_adamw_", "optimizer", None),
        ("aten::embedding", "embedding", None),
        ("aten::add_", "elementwise", None),
        ("c10d::allreduce_", "host", None),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_bmm1_t128x64x256u2_s4_et128x64_rM_TN_transOut_sm100f", "gemm", "fp8"),
        ("bmm_E4m3_E4m3E4m3_Fp32_t128x8x512u2_s7_et64x8_m64x8x32_cga1x1x1_16dp256b_rM_TN", "gemm", "fp8"),
        ("bmm_E4m3_MxE2m1E4m3_castMxE4m3_Fp32_bA32_bB32_t128x8x512_s3_et128x8", "gemm", "fp8"),
        ("bmm_Bfloat16_MxInt4Bfloat16_castBfloat16_Fp32_Ab32_t128x16x256_s3", "gemm", "bf16"),
        ("bmm_E4m3_Bfloat16Bfloat16_Fp32_t128x8x512u2_s7", "gemm", "bf16"),
        ("bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16_t128x8x512u2_s7_et128x8", "gemm", "fp4"),
        # cuDNN 8 and 9: hmma is of fp16, bf16 and tf32; what is after it says which
        (
            "void xmma_cudnn::gemm::kernel<Kernel_traits<xmma_cudnn::Ampere_hmma_tf32_traits<unsigned>>>()",
            "gemm",
            "tf32",
        ),
        ("void xmma_cudnn::strided_dgrad::kernel<xmma_cudnn::Ampere_hmma_fp32_traits>()", "gemm", "fp16"),
        ("void xmma_cudnn::gemm::kernel<xmma_cudnn::Ampere_hmma_bf16_traits<unsigned>>()", "gemm", "bf16"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64_cudnn", "gemm", "tf32"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64_cudnn", "gemm", "fp16"),
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64_cudnn", "gemm", "bf16"),
        ("void implicit_convolve_sgemm<float, float, 1024, 5, 5>()", "gemm", "fp32"),
        ("void cutlass_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64_16x4_nhwc>()", "gemm", "tf32"),
        # cuBLASLt, and CUTLASS of Turing, where s1688 is of 16 bits
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_stage3_cublas", "gemm", "tf32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x128x8_ffma_cublas", "gemm", "fp32"),
        ("sm90_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize128x128x128_imma_cublas", "gemm", "int8"),
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", "gemm", "bf16"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_relu_f2f_tn", "gemm", "fp16"),
        # CUTLASS 3
        ("cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_tnn_align8", "gemm", "bf16"),
        ("cutlass3x_sm90_tensorop_s64x128x8gemm_tf32_tf32_f32_f32_f32_128x128x32_tnn_align4", "gemm", "tf32"),
        ("cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32_bf16_bf16_128x128x128_tnn", "gemm", "fp8"),
        ("void cutlass::device_kernel<MMA_Atom<SM90_64x128x8_F32TF32TF32_SS_TN<>>>()", "gemm", "tf32"),
        # Inductor's pointwise kernels and reductions are named after the product before them, too
        ("triton_poi_fused__to_copy_bmm_cat_mul_7", "elementwise", None),
        ("triton_poi_fused_convolution_relu_3", "elementwise", None),
        ("triton_tem_fused_addmm_2", "gemm", None),
        ("triton_tem_fused_flex_attention_0", "attention", None),
        # rocBLAS and hipBLASLt
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT64x32x64", "gemm", "bf16"),
        ("Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN", "gemm", "fp16"),
        ("Cijk_Alik_Bljk_HB_MT64x64x32_MI32x32x8x1_SN", "gemm", "fp16"),
        ("Cijk_Ailk_Bjlk_SB_Bias_AS_SAV_UserArgs_MT64x16x16", "gemm", "fp32"),
        ("Cijk_Ailk_Bjlk_S_B_Bias_HA_S_SAV_UserArgs_MT64x16x16", "gemm", "fp32"),
        ("Cijk_Ailk_Bjlk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT64x16x16", "gemm", "tf32"),
        ("Cijk_Ailk_Bljk_DB_MT64x64x16_MI16x16x4x1_SN", "gemm", "fp64"),
        ("Cijk_Alik_Bljk_F8BS_BH_Bias_SHB_HA_S_SAB_SAV_UserArgs", "gemm", "fp8"),
        # MIOpen: igemm is an implicit product
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8", "gemm", "bf16"),
        ("igemm_wrw_gtcx_nhwc_fp16_bx0_ex1_bt128x128x32_wt32x32x8", "gemm", "fp16"),
        ("igemm_bwd_gtcx_nhwc_fp32_bx0_ex0_bt64x64x16_wt32x32x2", "gemm", "fp32"),
        ("void igemm_128x128x64_int8()", "gemm", "int8"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", "gemm", "fp32"),
        ("naive_conv_ab_nonpacked_fwd_nchw_half_double_half", "gemm", "fp16"),
        ("naive_conv_ab_nonpacked_bwd_nchw_float_double_float", "gemm", "fp32"),
        ("kernel_of_an_unknown_library", "other", None),
    ],
)
def test_a_name_says_kind_and_precision(name: str, kind: str, precision: str | None) -> None:
    assert (
        RULES.of_name(name, on_cpu="::" in name and name.startswith(("aten", "c10d"))),
        RULES.precision(kind, name),
    ) == (kind, precision)


@pytest.mark.parametrize("name", ["MulBackward0", "autograd::engine::evaluate_function: MmBackward0", "MyFunction"])
def test_autograds_bookkeeping_is_no_work_on_a_cpu_and_says_nothing_about_kernels(name: str) -> None:
    assert RULES.of_name(name, on_cpu=True) == "host"
    assert RULES.of_name(name) != "host"


# A collective's span is known by what was recorded, not by its name.
@pytest.mark.parametrize("name", [name for name in EXPECTED if not name.startswith("gloo:")])
def test_every_operator_that_the_exercises_run_on_a_cpu_has_its_kind(name: str) -> None:
    assert RULES.of_name(name, on_cpu=True) == EXPECTED[name]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_AllGatherFromTensorParallelRegion", "host"),
        ("LayerNormFn2d", "host"),
        ("_MatMul_v2", "host"),
        ("cpp_fused_add_0", "elementwise"),
        ("graph_0_cpp_fused_mul_0", "elementwise"),
        ("triton_poi_fused_add_0", "elementwise"),
        ("dnnl_linear", "other"),
        ("mylib::Copy", "elementwise"),
    ],
)
def test_only_a_bare_name_like_a_class_of_python_is_taken_for_one(name: str, kind: str) -> None:
    assert RULES.of_name(name, on_cpu=True) == kind


def test_waiting_in_a_python_function_is_no_computation() -> None:
    """As in tensor parallelism on a CPU: the function waits for its reduce-scatter, which no work hides."""
    made = Made().event(0, 10, "aten::mm", activity=Activity.CPU_OP, stream=1)
    made.event(10, 100, "_ReduceScatterToSequenceParallelRegion", activity=Activity.CPU_OP, stream=1)
    made.event(20, 90, "gloo:all_reduce", activity=Activity.CPU_COLLECTIVE, stream=2)
    device = measured(made)
    assert (device.compute_ns, device.exposed_communication_ns) == (10, 70)


def test_the_recorded_type_decides_the_precision_where_there_is_one() -> None:
    assert RULES.precision("gemm", "aten::mm", "bfloat16") == "bf16"
    assert RULES.precision("gemm", "aten::mm", "float32") == "fp32"


def measured(made: Made) -> Device:
    return part_of(made, Window.GPU).devices[0]


def test_copies_and_sets_are_memory_never_compute() -> None:
    device = measured(Made().event(0, 10).copy(10, 30, 4096).memset(30, 35).copy(40, 41, 8, CopyKind.D2H))
    assert (device.compute_ns, device.memory_ns, device.idle_ns) == (10, 26, 5)
    assert {k.kind: k.duration_ns for k in device.kinds} == {"gemm": 10, "copy H2D": 20, "copy D2H": 1, "memset": 5}


def test_one_name_may_run_in_two_precisions() -> None:
    made = Made()
    half, single = made.name("bfloat16"), made.name("float32")
    made.event(0, 10, "aten::mm", activity=Activity.CPU_OP, dtype=half)
    made.event(10, 15, "aten::mm", activity=Activity.CPU_OP, dtype=single)
    assert {(k.kind, k.precision): k.duration_ns for k in measured(made).kinds} == {
        ("gemm", "bf16"): 10,
        ("gemm", "fp32"): 5,
    }


def test_a_name_without_a_word_of_any_pattern_is_compared_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording may have 100,000 names, as of generated kernels."""
    tried = list[str]()

    def counted(pattern: str) -> re.Pattern[str]:
        tried.append(pattern)
        return re.compile(pattern, re.IGNORECASE)

    monkeypatch.setattr(kinds, "_compiled", counted)
    assert (
        load_rules().of_name("void my::ns::thing_77<int, float, std::integral_constant<bool, true>, Ty<77, 16>>")
        == "other"
    )
    assert len(tried) < 8, tried


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("relu|sigmoid", [("relu", "relu"), ("sigmoid", "sigmoid")]),
        ("(a|b)_?norm|x[y|z]{2}Long", [("norm", "(a|b)_?norm"), ("long", "x[y|z]{2}Long")]),
        (
            r"^bmm_(?-i:[A-Z])|\bdeep_?ep::|a\|b",
            [("bmm_", r"^bmm_(?-i:[A-Z])"), ("deep", r"\bdeep_?ep::"), ("a", r"a\|b")],
        ),
        ("((one|two)|three)*x?", [("", "((one|two)|three)*x?")]),
        ("cutlass.*(::Kernel|op)", [("cutlass", "cutlass.*(::Kernel|op)")]),
    ],
)
def test_the_word_of_a_part_of_a_pattern_is_in_every_name_that_it_matches(
    pattern: str, parts: list[tuple[str, str]]
) -> None:
    assert kinds._alternatives([pattern]) == tuple(parts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kinds: [{kind: gemmm, patterns: [a]}]\nprecisions: []\ndtypes: {}\n", "'gemmm' is not a kind"),
        ("kinds: [{kind: gemm, patterns: ['(']}]\nprecisions: []\ndtypes: {}\n", "no regular expression"),
        ("kinds: []\nprecisions: []\ndtypes: {}\nkidns: []\n", "kidns"),
        ("kinds: [\n", "cannot be read"),
    ],
)
def test_rules_that_cannot_work_are_refused_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "kernels.yaml"
    path.write_text(text)
    with pytest.raises(RequestError, match=r"kernels\.yaml") as refused:
        load_rules(path)
    assert said in str(refused.value)


def test_every_event_is_classified_once_whatever_its_neighbours() -> None:
    made = Made().event(0, 10, GEMM).event(20, 30, "x", device=3).copy(0, 5, 8, device=1)
    part = part_of(made, Window.GPU)
    assert {d.device: [k.kind for k in d.kinds] for d in part.devices} == {0: ["gemm"], 1: ["copy H2D"], 3: ["other"]}
