/* A decode loop in C, as an engine runs it: at every step a new key goes into the paged cache, and
 * the index says which 4 blocks of 128 keys the new query should read. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvscout/kvscout_c.h"

enum { kPages = 16, kSteps = 1500, kTopk = 4 };
static uint8_t codes[kPages * 128 * 64], scales[kPages * 1024]; /* the cache: 72 bytes a key */

static kvscout_tensor view(const void* data, int dtype, int rank, int64_t a, int64_t b, int64_t c,
                           int64_t d) {
  const int64_t shape[] = {a, b, c, d};
  return kvscout_dense(data, dtype, rank, shape);
}

int main(void) {
  float key[128],
      query[128]; /* values in [-1, 1]: forward scale 2688, inverse 1/2688 for 4-bit tensors */
  uint16_t query_bf16[128];
  int64_t slot;
  int32_t page_table[kPages], keys_so_far = 0, ids[kTopk], cu_q[] = {0, 1};
  for (int p = 0; p < kPages; ++p)
    page_table[p] = kPages - 1 - p; /* any order: pages come from an allocator */

  /* What stays the same from step to step is set once. */
  kvscout_tensor k = view(key, KVSCOUT_F32, 3, 1, 1, 128, 0),
                 slots = view(&slot, KVSCOUT_I64, 1, 1, 0, 0, 0);
  kvscout_tensor q = view(query_bf16, KVSCOUT_BF16, 3, 1, 1, 128, 0),
                 cu = view(cu_q, KVSCOUT_I32, 1, 2, 0, 0, 0);
  kvscout_tensor cache = view(codes, KVSCOUT_U8, 4, kPages, 1, 128, 64),
                 sf = view(scales, KVSCOUT_U8, 2, kPages, 1024, 0, 0);
  kvscout_tensor table = view(page_table, KVSCOUT_I32, 2, 1, kPages, 0, 0),
                 used = view(&keys_so_far, KVSCOUT_I32, 1, 1, 0, 0, 0);
  kvscout_tensor out = view(ids, KVSCOUT_I32, 3, 1, 1, kTopk, 0);
  kvscout_append_args append = {sizeof append, &k, &cache, &sf, &slots, {2688.0f, NULL}};
  kvscout_score_fp4_args score = {sizeof score};
  score.q_fp4 = &q, score.k_fp4 = &cache,
  score.k_scale = &sf; /* no q_scale: the query is not quantised */
  score.q_global_scale.value = 1, score.k_global_scale.value = 1 / 2688.0f;
  score.cu_seqlens_q = &cu, score.page_table = &table, score.seqused_k = &used;
  score.causal = 1, score.max_seqlen_q = 1, score.max_k_tiles = kPages;
  kvscout_index_args index = {sizeof index, &score, kTopk, 0, 1,
                              &out,         NULL}; /* the last block is always read */

  char why[256] = "";
  kvscout_options options = {sizeof options};
  options.message = why, options.message_bytes = sizeof why;
  if (kvscout_msa_index_select_fp4_workspace(&index, &options, &options.workspace_bytes) !=
      KVSCOUT_OK)
    goto failed;
  options.workspace_bytes = (options.workspace_bytes + 255) / 256 * 256 + 256;
  options.workspace = aligned_alloc(256, options.workspace_bytes);

  for (int step = 0; step < kSteps; ++step) {
    for (int d = 0; d < 128; ++d) key[d] = sinf((float)((int64_t)step * step % 977 * (d + 3)));
    const int asks_for = step / 3; /* the query of this step is the key of that one */
    for (int d = 0; d < 128; ++d) {
      query[d] = sinf((float)((int64_t)asks_for * asks_for % 977 * (d + 3)));
      query_bf16[d] = (uint16_t)(((union {
                                   float f;
                                   uint32_t u;
                                 }){query[d]})
                                     .u >>
                                 16);
    }
    slot = page_table[step / 128] * 128 + step % 128;
    keys_so_far = step + 1;
    if (kvscout_msa_index_append_fp4(&append, &options) != KVSCOUT_OK) goto failed;
    if (kvscout_msa_index_select_fp4(&index, &options) != KVSCOUT_OK) goto failed;
    if (step % 250 == 249)
      printf("%4d keys, asks for block %d: reads %d %d %d %d\n", keys_so_far, asks_for / 128,
             ids[0], ids[1], ids[2], ids[3]);
  }
  free(options.workspace);
  return 0;
failed:
  fprintf(stderr, "%s\n", why);
  return 1;
}
