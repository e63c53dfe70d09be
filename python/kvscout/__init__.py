"""kvscout: which blocks of a long KV cache are worth reading.

A drop-in for `flashinfer.msa_ops` (and `flashinfer.nvfp4_quantize`) on torch, numpy and any DLPack array, on
every machine:

    from kvscout import msa_proxy_score_fp4, msa_topk_select, nvfp4_quantize

`help(kvscout.msa_proxy_score_fp4)` and the others give shapes, dtypes, units, formula and errors. `kvscout.plot`
draws scores, `kvscout.integrations` holds the pieces that engines need.
"""

from .info import Backend, backends
from .quantize import SfLayout, global_scale_of, msa_index_append_fp4, nvfp4_quantize, scale_shape
from .score import msa_proxy_score, msa_proxy_score_fp4
from .select import msa_index_select_fp4, msa_index_select_fp4_workspace, msa_topk_select

__version__ = "0.1.0"
__all__ = [
    "Backend",
    "SfLayout",
    "backends",
    "global_scale_of",
    "msa_index_append_fp4",
    "msa_index_select_fp4",
    "msa_index_select_fp4_workspace",
    "msa_proxy_score",
    "msa_proxy_score_fp4",
    "msa_topk_select",
    "nvfp4_quantize",
    "scale_shape",
]
