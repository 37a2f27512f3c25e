"""What a training inherits from the shell that launches it and what changes how it communicates or computes: variables
by the library that reads them, and the limits of a process. Standard library only."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable, Mapping
from math import inf

# Library -> the names that it reads; a star stands for the rest of a name.
READ_BY = {
    "NCCL, RCCL and their plugins": "NCCL_* RCCL_* MSCCL* OFI_NCCL_* SHARP_* HCOLL_* UCC_* CCL_* NVSHMEM_* ROCSHMEM_*",
    "CUDA and its libraries": "CUDA_* CUDNN_* CUBLAS_* CUBLASLT_* CUTENSOR_* CUTLASS_* NVIDIA_TF32_OVERRIDE",
    "ROCm and its libraries": "HIP_* HSA_* ROC_* ROCR_* AMD_* ROCBLAS_* HIPBLASLT_* MIOPEN_* TENSILE_* AITER_* CK_* "
    "GPU_MAX_* GPU_SINGLE_* GPU_FORCE_* GPU_ENABLE_* GPU_DEVICE_ORDINAL",
    "oneAPI": "SYCL_* ZE_* UR_* IGC_* ONEAPI_DEVICE_SELECTOR IPEX_*",
    "PyTorch": "PYTORCH_* TORCH* AOTINDUCTOR_* FUNCTORCH_* TRITON_* ATEN_CPU_CAPABILITY DISABLE_ADDMM_* "
    "LRU_CACHE_CAPACITY GLOO_* TP_*",
    "OpenMP and libraries of linear algebra": "OMP_* GOMP_* KMP_* LIBOMP_* MKL_* ONEDNN_* DNNL_* OPENBLAS_* GOTO_* "
    "BLIS_* VECLIB_* NUMEXPR_* TBB_* RAYON_*",
    "libraries of training": "NVTE_* FLASH_ATTENTION_* FLASHINFER_* XFORMERS_* BNB_* DEEPSPEED_* DS_* ACCELERATE_* "
    "FSDP_* PARALLELISM_CONFIG_* MEGATRON_* PET_* PL_* TOKENIZERS_* HF_DATASETS_* XLA_* JAX_*",
    "MPI and networks": "MPI_* OMPI_* PRTE_* PMIX_MCA_* I_MPI_* MPICH_* MV2_* UCX_* FI_* PSM2_* PSM3_* HFI_* IBV_* "
    "RDMAV_* MLX4_* MLX5_*",
    "the C library and the loader": "LD_PRELOAD LD_AUDIT LD_BIND_NOW MALLOC_* GLIBC_TUNABLES TCMALLOC_* MIMALLOC_* "
    "JEMALLOC_*",
    "libraries of data": "DALI_* NUMBA_* OPENCV_* ARROW_* RAY_*",
    "Python": "PYTHONPATH PYTHONUSERBASE PYTHONNOUSERSITE PYTHONHASHSEED PYTHONFAULTHANDLER PYTHONPERFSUPPORT "
    "PYTHONASYNCIODEBUG PYTHONWARNINGS PYTHONMALLOC PYTHONOPTIMIZE PYTHONDEVMODE PYTHONTRACEMALLOC PYTHON_GIL "
    "PYTHON_JIT PYTHON_CPU_COUNT",
}
_READ = [each for names in READ_BY.values() for each in names.split()]
_BEGINNINGS = tuple(each[:-1] for each in _READ if each.endswith("*"))
# A module names by these where a package lies and which one it is. FI_PROVIDER_PATH chooses another network, and of
# launchers all are options.
_WHERE = re.compile(
    r"^(?!PET_|ACCELERATE_|FSDP_).*"
    r"_(HOME|ROOT|BASE|PREFIX|DIR|DIRECTORY|(?<!FI_PROVIDER_)PATH|BIN|LIB|INC|INCLUDE|MAN|VERSION)$",
    re.DOTALL,
)
# What bash names so: the number of `resource`, bytes of a unit, and in that unit what Linux gives to a user at least.
_LIMITS = {
    "ulimit -d": (resource.RLIMIT_DATA, 1024, inf),
    "ulimit -f": (resource.RLIMIT_FSIZE, 1024, inf),
    "ulimit -l": (resource.RLIMIT_MEMLOCK, 1024, 64),
    "ulimit -n": (resource.RLIMIT_NOFILE, 1, 1024),
    "ulimit -s": (resource.RLIMIT_STACK, 1024, 8192),
    "ulimit -t": (resource.RLIMIT_CPU, 1, inf),
    "ulimit -u": (resource.RLIMIT_NPROC, 1, 1024),
    "ulimit -v": (resource.RLIMIT_AS, 1024, inf),
}
_USUAL = {"umask": ("0022", "0002"), "nice": ("0",)}
LIMITS = (*_USUAL, *_LIMITS)
_NONE = "unlimited"


def read_by_libraries(names: Iterable[str]) -> list[str]:
    """Those of the names that a library of a training reads, sorted.

    >>> read_by_libraries(["KMP_AFFINITY", "CUDA_HOME", "OMP_NUM_THREADS", "HOME", "NVIDIA_TF32_OVERRIDE"])
    ['KMP_AFFINITY', 'NVIDIA_TF32_OVERRIDE', 'OMP_NUM_THREADS']
    """
    return sorted(name for name in names if (name in _READ or name.startswith(_BEGINNINGS)) and not _WHERE.search(name))


def own_limits() -> dict[str, str]:
    """What this process gives to those that it starts: umask, niceness, and limits as bash's `ulimit` prints them."""
    mask = os.umask(0o022)
    os.umask(mask)
    soft = {name: (resource.getrlimit(number)[0], unit) for name, (number, unit, _) in _LIMITS.items()}
    texts = {
        name: _NONE if most == resource.RLIM_INFINITY else str(most // unit) for name, (most, unit) in soft.items()
    }
    return {"umask": f"{mask:04o}", "nice": str(os.getpriority(os.PRIO_PROCESS, 0)), **texts}


def unusual(limits: Mapping[str, str]) -> dict[str, str]:
    """Those that may stop or slow a training, or close its files to others.

    >>> unusual({"umask": "0077", "nice": "0", "ulimit -n": "256", "ulimit -v": "unlimited"})
    {'umask': '0077', 'ulimit -n': '256'}
    """
    few = {name: usual for name, (_, _, usual) in _LIMITS.items()}
    return {
        name: text
        for name, text in limits.items()
        if text not in _USUAL.get(name, (text,)) or (text.isdecimal() and float(text) < few.get(name, 0))
    }
