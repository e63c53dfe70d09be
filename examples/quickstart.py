# 1000 keys and one query to NVFP4; which 3 of the 8 blocks of 128 keys are worth reading?
import numpy as np
from kvscout import global_scale_of, msa_index_select_fp4, nvfp4_quantize

keys = np.random.default_rng(0).standard_normal((1000, 1, 128)).astype(np.float32)
query = keys[700:701]  # the query is a copy of key 700

k_scale = global_scale_of(keys)  # 2688 / the largest magnitude
q_scale = global_scale_of(query)
k_fp4, k_sf = nvfp4_quantize(keys, k_scale)
q_fp4, q_sf = nvfp4_quantize(query, q_scale)

# One request: its only query is the last position, so it sees all 1000 keys.
ids, scores = msa_index_select_fp4(
    q_fp4, k_fp4, q_sf, k_sf, 1 / q_scale, 1 / k_scale,
    cu_seqlens_q=np.array([0, 1]), cu_seqlens_k=np.array([0, 1000]), topk=3, return_scores=True)
for block, score in zip(ids[0, 0], scores[0, 0]):
    print(f"block {block}, score {score:.1f}")
