/* Every C function from C99: results against each other and by hand, every error code, old and new
 * struct sizes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvscout/kvscout_c.h"

static int checks = 0, failures = 0;
static char why[300];

static void check(int good, int line, const char* what) {
  ++checks;
  if (good) return;
  ++failures;
  printf("line %d: %s (message: %s)\n", line, what, why);
}
#define CHECK(condition) check((condition), __LINE__, #condition)
#define HAS(text) (strstr(why, text) != NULL)

enum { kKeys = 1000, kQueries = 3, kHeads = 2, kTiles = 8, kPages = 8, kTopk = 3 };

static float keys[kKeys * 128], queries[kQueries * kHeads * 128];
static uint16_t keys_bf16[kKeys * 128], queries_bf16[kQueries * kHeads * 128];
static uint8_t k_codes[kKeys * 64], k_sf[1024 * 8], q_codes[kQueries * kHeads * 64], q_sf[128 * 8];
static float scores[kHeads * kTiles * kQueries], other_scores[kHeads * kTiles * kQueries];
static int32_t ids[kQueries * kHeads * kTopk], other_ids[kQueries * kHeads * kTopk];
static float best[kQueries * kHeads * kTopk];
static const int32_t cu_q[2] = {0, kQueries}, cu_k[2] = {0, kKeys};
static const float kForward = 448.0f; /* values in [-6, 6] */

static kvscout_tensor tensor(const void* data, int32_t dtype, int32_t rank, int64_t a, int64_t b,
                             int64_t c, int64_t d) {
  const int64_t shape[4] = {a, b, c, d};
  return kvscout_dense(data, dtype, rank, shape);
}

static void* aligned(void* memory) { return (void*)(((uintptr_t)memory + 255) / 256 * 256); }

static void make_data(void) {
  uint32_t state = 1, bits;
  int i;
  for (i = 0; i < kKeys * 128; ++i) {
    state = state * 1664525u + 1013904223u;
    keys[i] = (float)(int32_t)state / 2147483648.0f * 6.0f;
    memcpy(&bits, &keys[i], 4);
    keys_bf16[i] = (uint16_t)(bits >> 16);
  }
  /* The query of token t and head h is the key 300*t + 100*h: its block must win. */
  for (i = 0; i < kQueries * kHeads; ++i) {
    const int key = 300 * (i / kHeads) + 100 * (i % kHeads);
    memcpy(queries + i * 128, keys + key * 128, 128 * sizeof(float));
    memcpy(queries_bf16 + i * 128, keys_bf16 + key * 128, 128 * sizeof(uint16_t));
  }
}

static int quantize(const float* from, int64_t rows, uint8_t* codes, int64_t scale_bytes,
                    uint8_t* sf, const kvscout_options* o) {
  const kvscout_tensor a = tensor(from, KVSCOUT_F32, 2, rows, 128, 0, 0);
  const kvscout_tensor c = tensor(codes, KVSCOUT_U8, 2, rows, 64, 0, 0);
  const kvscout_tensor s = tensor(sf, KVSCOUT_U8, 1, scale_bytes, 0, 0, 0);
  kvscout_quantize_args args = {sizeof args};
  args.a = &a;
  args.a_global_sf.value = kForward;
  args.layout = KVSCOUT_LAYOUT_128X4;
  args.codes = &c;
  args.scales = &s;
  return kvscout_nvfp4_quantize(&args, o);
}

/* One problem of every operation on the back end of this name. */
static void every_operation(const char* backend) {
  static uint8_t memory[1 << 20];
  size_t bytes = 0;
  int i, h, t, b;
  kvscout_options o = {sizeof o};
  o.backend = backend;
  o.message = why;
  o.message_bytes = sizeof why;
  o.workspace = aligned(memory);
  o.workspace_bytes = sizeof memory - 256;

  CHECK(kvscout_scale_bytes(KVSCOUT_LAYOUT_128X4, kKeys, 8) == sizeof k_sf);
  CHECK(quantize(keys, kKeys, k_codes, sizeof k_sf, k_sf, &o) == KVSCOUT_OK);
  CHECK(quantize(queries, kQueries * kHeads, q_codes, sizeof q_sf, q_sf, &o) == KVSCOUT_OK);
  CHECK(memcmp(q_codes, k_codes, 64) == 0); /* the first query is the first key */

  kvscout_tensor q = tensor(q_codes, KVSCOUT_U8, 3, kQueries, kHeads, 64, 0);
  kvscout_tensor k = tensor(k_codes, KVSCOUT_U8, 3, kKeys, 1, 64, 0);
  kvscout_tensor qs = tensor(q_sf, KVSCOUT_E4M3, 1, sizeof q_sf, 0, 0, 0);
  kvscout_tensor ks = tensor(k_sf, KVSCOUT_E4M3, 1, sizeof k_sf, 0, 0, 0);
  kvscout_tensor lengths_q = tensor(cu_q, KVSCOUT_I32, 1, 2, 0, 0, 0);
  kvscout_tensor lengths_k = tensor(cu_k, KVSCOUT_I32, 1, 2, 0, 0, 0);
  kvscout_tensor out = tensor(scores, KVSCOUT_F32, 3, kHeads, kTiles, kQueries, 0);
  kvscout_score_fp4_args score = {sizeof score};
  score.q_fp4 = &q, score.k_fp4 = &k, score.q_scale = &qs, score.k_scale = &ks;
  score.q_global_scale.value = score.k_global_scale.value = 1 / kForward;
  score.cu_seqlens_q = &lengths_q, score.cu_seqlens_k = &lengths_k;
  score.causal = 1;
  score.max_seqlen_q = kQueries, score.max_k_tiles = kTiles;
  score.output = &out;
  CHECK(kvscout_msa_proxy_score_fp4_workspace(&score, &o, &bytes) == KVSCOUT_OK &&
        bytes <= o.workspace_bytes);
  CHECK(kvscout_msa_proxy_score_fp4(&score, &o) == KVSCOUT_OK);
  for (t = 0; t < kQueries; ++t) {
    for (h = 0; h < kHeads; ++h) {
      int first = 0;
      for (b = 1; b < kTiles; ++b)
        if (scores[(h * kTiles + b) * kQueries + t] > scores[(h * kTiles + first) * kQueries + t])
          first = b;
      CHECK(first == (300 * t + 100 * h) / 128);
    }
  }

  /* The unquantised scores are near. */
  kvscout_tensor q16 = tensor(queries_bf16, KVSCOUT_BF16, 3, kQueries, kHeads, 128, 0);
  kvscout_tensor k16 = tensor(keys_bf16, KVSCOUT_BF16, 3, kKeys, 1, 128, 0);
  kvscout_tensor out16 = tensor(other_scores, KVSCOUT_F32, 3, kHeads, kTiles, kQueries, 0);
  kvscout_score_args exact = {sizeof exact};
  exact.q = &q16, exact.k = &k16, exact.cu_seqlens_q = &lengths_q, exact.cu_seqlens_k = &lengths_k;
  exact.causal = 1, exact.max_seqlen_q = kQueries, exact.max_k_tiles = kTiles,
  exact.output = &out16;
  CHECK(kvscout_msa_proxy_score_workspace(&exact, &o, &bytes) == KVSCOUT_OK &&
        bytes <= o.workspace_bytes);
  CHECK(kvscout_msa_proxy_score(&exact, &o) == KVSCOUT_OK);
  for (i = 0; i < kHeads * kTiles * kQueries; ++i)
    CHECK(fabsf(scores[i] - other_scores[i]) <
          0.06f * 128 * 12); /* 12: the mean square of the values */

  /* Bounds from the lengths, and what the call would do; neither needs bounds or output. */
  kvscout_bounds bounds = {sizeof bounds};
  kvscout_plan plan = {sizeof plan};
  kvscout_score_fp4_args question = score;
  kvscout_score_args exact_question = exact;
  question.max_seqlen_q = question.max_k_tiles = -1, question.output = NULL;
  exact_question.max_seqlen_q = exact_question.max_k_tiles = -1, exact_question.output = NULL;
  CHECK(kvscout_msa_proxy_score_fp4_bounds(&question, &o, &bounds) == KVSCOUT_OK &&
        bounds.max_seqlen_q == kQueries && bounds.max_k_tiles == kTiles);
  bounds.max_seqlen_q = bounds.max_k_tiles = 0;
  CHECK(kvscout_msa_proxy_score_bounds(&exact_question, &o, &bounds) == KVSCOUT_OK &&
        bounds.max_seqlen_q == kQueries && bounds.max_k_tiles == kTiles);
  CHECK(kvscout_explain(&score, &o, &plan) == KVSCOUT_OK &&
        strncmp(plan.text, backend, strlen(backend)) == 0 && strstr(plan.text, "workspace"));
  question.cu_seqlens_q = NULL;
  CHECK(kvscout_msa_proxy_score_fp4_bounds(&question, &o, &bounds) == KVSCOUT_INVALID_ARGUMENT &&
        HAS("cu_seqlens_q"));
  CHECK(bounds.max_k_tiles == kTiles); /* as it was */
  CHECK(kvscout_msa_proxy_score_fp4_bounds(&score, &o, NULL) == KVSCOUT_INVALID_ARGUMENT &&
        HAS("bounds"));
  bounds.size = 16;
  CHECK(kvscout_msa_proxy_score_bounds(&exact, &o, &bounds) == KVSCOUT_INVALID_ARGUMENT &&
        HAS("struct of size 16"));
  plan.size = sizeof plan + 1;
  CHECK(kvscout_explain(&score, &o, &plan) == KVSCOUT_INVALID_ARGUMENT && HAS("plan"));
  plan.size = sizeof plan;
  CHECK(kvscout_explain(NULL, &o, &plan) == KVSCOUT_INVALID_ARGUMENT && HAS("NULL"));

  /* An offset hides keys: the query at position 127 sees block 0 alone. */
  score.has_q_offset = 1, score.q_offset = 125;
  score.output = &out16;
  CHECK(kvscout_msa_proxy_score_fp4(&score, &o) == KVSCOUT_OK);
  CHECK(other_scores[2] == scores[2] && other_scores[kQueries + 2] == -INFINITY);
  score.has_q_offset = 0, score.output = &out;

  kvscout_tensor chosen = tensor(ids, KVSCOUT_I32, 3, kQueries, kHeads, kTopk, 0);
  kvscout_select_args select = {sizeof select};
  select.max_score = &out;
  select.topk = kTopk;
  select.force_end_blocks = 1;
  select.output = &chosen;
  CHECK(kvscout_msa_topk_select(&select, &o) == KVSCOUT_OK);
  CHECK(ids[0] == 0 && ids[kTopk - 1] == kTiles - 1); /* the best of query 0, and the forced one */

  kvscout_tensor indexed = tensor(other_ids, KVSCOUT_I32, 3, kQueries, kHeads, kTopk, 0);
  kvscout_tensor values = tensor(best, KVSCOUT_F32, 3, kQueries, kHeads, kTopk, 0);
  kvscout_index_args index = {sizeof index};
  index.score = &score, index.topk = kTopk, index.force_end_blocks = 1;
  index.output = &indexed, index.scores = &values;
  CHECK(kvscout_msa_index_select_fp4_workspace(&index, &o, &bytes) == KVSCOUT_OK &&
        bytes <= o.workspace_bytes);
  CHECK(kvscout_msa_index_select_fp4(&index, &o) == KVSCOUT_OK);
  CHECK(memcmp(ids, other_ids, sizeof ids) == 0);
  CHECK(best[0] == scores[0]);

  /* The same keys appended to a paged cache, pages in reverse order: the same ids. */
  static uint8_t pool[kPages * 64 * 128], pool_sf[kPages * 1024];
  static int64_t slots[kKeys];
  static int32_t table[kPages];
  const int32_t used[1] = {kKeys};
  for (i = 0; i < kPages; ++i) table[i] = kPages - 1 - i;
  for (i = 0; i < kKeys; ++i) slots[i] = table[i / 128] * 128 + i % 128;
  kvscout_tensor fresh = tensor(keys, KVSCOUT_F32, 3, kKeys, 1, 128, 0);
  kvscout_tensor cache = tensor(pool, KVSCOUT_U8, 4, kPages, 1, 128, 64);
  kvscout_tensor cache_sf = tensor(pool_sf, KVSCOUT_U8, 2, kPages, 1024, 0, 0);
  kvscout_tensor where = tensor(slots, KVSCOUT_I64, 1, kKeys, 0, 0, 0);
  kvscout_append_args append = {sizeof append};
  append.k = &fresh, append.k_cache_fp4 = &cache, append.k_cache_scale = &cache_sf,
  append.slot_mapping = &where;
  append.global_scale.pointer = &kForward;
  CHECK(kvscout_msa_index_append_fp4(&append, &o) == KVSCOUT_OK);
  CHECK(memcmp(pool + table[0] * 8192, k_codes, 8192) == 0);
  CHECK(memcmp(pool_sf + table[0] * 1024, k_sf, 1024) == 0);
  kvscout_tensor pages = tensor(table, KVSCOUT_I32, 2, 1, kPages, 0, 0);
  kvscout_tensor lengths = tensor(used, KVSCOUT_I32, 1, 1, 0, 0, 0);
  score.k_fp4 = &cache, score.k_scale = &cache_sf, score.cu_seqlens_k = NULL;
  score.page_table = &pages, score.seqused_k = &lengths;
  memset(other_ids, 0, sizeof other_ids);
  o.check = 1;
  CHECK(kvscout_msa_index_select_fp4(&index, &o) == KVSCOUT_OK);
  CHECK(memcmp(ids, other_ids, sizeof ids) == 0);
  o.check = 0;

  /* What is refused says what and why, and leaves the output. */
  other_ids[0] = 77;
  index.topk = 65;
  CHECK(kvscout_msa_index_select_fp4(&index, &o) == KVSCOUT_INVALID_ARGUMENT && HAS("topk") &&
        HAS("65"));
  CHECK(other_ids[0] == 77);
  index.topk = kTopk;
  index.score = NULL;
  CHECK(kvscout_msa_index_select_fp4(&index, &o) == KVSCOUT_INVALID_ARGUMENT && HAS("NULL"));
  score.reduce_heads = 3;
  CHECK(kvscout_msa_proxy_score_fp4(&score, &o) == KVSCOUT_INVALID_ARGUMENT && HAS("reduce_heads"));
  score.reduce_heads = KVSCOUT_REDUCE_NONE;
  q.dtype = 99;
  CHECK(kvscout_msa_proxy_score_fp4(&score, &o) == KVSCOUT_INVALID_ARGUMENT && HAS("q_fp4") &&
        HAS("99"));
  q.dtype = KVSCOUT_U8, q.rank = 5;
  CHECK(kvscout_msa_proxy_score_fp4(&score, &o) == KVSCOUT_INVALID_ARGUMENT && HAS("rank 5"));
  q.rank = 3, q.device_type = -1;
  CHECK(kvscout_msa_proxy_score_fp4(&score, &o) == KVSCOUT_INVALID_ARGUMENT && HAS("q_fp4"));
  q.device_type = KVSCOUT_CPU, q.size = sizeof q + 8;
  CHECK(kvscout_msa_proxy_score_fp4(&score, &o) == KVSCOUT_INVALID_ARGUMENT &&
        HAS("struct of size 104"));
  q.size = sizeof q, score.q_fp4 = NULL;
  CHECK(kvscout_msa_proxy_score_fp4(&score, &o) == KVSCOUT_INVALID_ARGUMENT && HAS("q_fp4"));
  score.q_fp4 = &q, score.size = 0;
  CHECK(kvscout_msa_proxy_score_fp4(&score, &o) == KVSCOUT_INVALID_ARGUMENT &&
        HAS("struct of size 0"));
  score.size = sizeof score;
  CHECK(kvscout_msa_proxy_score_fp4_workspace(&score, &o, NULL) == KVSCOUT_INVALID_ARGUMENT &&
        HAS("bytes"));
  append.slot_mapping = NULL;
  CHECK(kvscout_msa_index_append_fp4(&append, &o) == KVSCOUT_INVALID_ARGUMENT &&
        HAS("slot_mapping"));
  exact.k = &q;
  CHECK(kvscout_msa_proxy_score(&exact, &o) == KVSCOUT_INVALID_ARGUMENT);
  select.force_begin_blocks = kTopk;
  CHECK(kvscout_msa_topk_select(&select, &o) == KVSCOUT_INVALID_ARGUMENT && HAS("force"));
}

int main(void) {
  kvscout_backend_info info = {sizeof info};
  kvscout_options o = {sizeof o};
  int32_t i;
  int hosts = 0;
  make_data();
  CHECK(strlen(kvscout_version()) > 0);
  for (i = 0; kvscout_backend(i, &info) == KVSCOUT_OK; ++i) {
    if (!info.available || info.device_type != KVSCOUT_CPU) {
      printf("%s: not run here: %s\n", info.name, info.status);
      continue;
    }
    every_operation(info.name);
    ++hosts;
  }
  CHECK(hosts >= 2);
  CHECK(info.size == sizeof info);
  CHECK(kvscout_backend(-1, &info) == KVSCOUT_INVALID_ARGUMENT);
  info.size = 4;
  CHECK(kvscout_backend(0, &info) == KVSCOUT_INVALID_ARGUMENT);
  CHECK(kvscout_backend(0, NULL) == KVSCOUT_INVALID_ARGUMENT);

  /* Without options or a message it only says that it did not work; a short buffer holds a short
   * message. */
  CHECK(kvscout_nvfp4_quantize(NULL, NULL) == KVSCOUT_INVALID_ARGUMENT);
  CHECK(quantize(keys, kKeys, k_codes, sizeof k_sf, k_sf, NULL) == KVSCOUT_OK);
  o.message = why, o.message_bytes = 6;
  memset(why, 'x', sizeof why);
  CHECK(kvscout_nvfp4_quantize(NULL, &o) == KVSCOUT_INVALID_ARGUMENT && strcmp(why, "nvfp4") == 0 &&
        why[6] == 'x');
  CHECK(quantize(keys, kKeys, k_codes, sizeof k_sf, k_sf, &o) == KVSCOUT_OK && why[0] == 0);
  o.message_bytes = sizeof why, o.backend = "nonesuch";
  CHECK(quantize(keys, kKeys, k_codes, sizeof k_sf, k_sf, &o) == KVSCOUT_UNSUPPORTED &&
        HAS("nonesuch"));
  o.backend = NULL;
  CHECK(quantize(keys, kKeys, k_codes, 8, k_sf, &o) == KVSCOUT_INVALID_ARGUMENT && HAS("scales"));
  CHECK(kvscout_scale_bytes(KVSCOUT_LAYOUT_8X4, 9, 8) == 128 &&
        kvscout_scale_bytes(KVSCOUT_LAYOUT_LINEAR, 9, 8) == 72);
  CHECK(kvscout_scale_bytes(3, 9, 8) == 0 && kvscout_scale_bytes(0, -1, 8) == 0);
  CHECK(kvscout_scale_bytes(0, INT64_C(1) << 40, 8) == (size_t)8 << 40);
  for (i = 0; i <= KVSCOUT_LAYOUT_LINEAR; ++i)
    CHECK(kvscout_scale_bytes(i, INT64_MAX, 8) == 0 && kvscout_scale_bytes(i, 8, INT64_MAX) == 0);

  printf("C API: %d checks, %d failed\n", checks, failures);
  return failures != 0;
}
