/* kvscout for C and for every language that calls C: the operations of kvscout.h with plain
 * structs.
 *
 *   kvscout_score_fp4_args a = {sizeof a};
 *   a.q_fp4 = &q; ...
 *   kvscout_options o = {sizeof o};
 *   char why[256];
 *   o.message = why, o.message_bytes = sizeof why;
 *   if (kvscout_msa_proxy_score_fp4(&a, &o) != KVSCOUT_OK) fprintf(stderr, "%s\n", why);
 *
 * Every struct starts with its own size, which the caller sets: a library that is newer than the
 * caller takes the missing fields as zero, one that is older refuses what it does not know. A
 * tensor that is not given is NULL. Nothing is kept between calls. docs/operations.md says what
 * every operation means.
 */
#ifndef KVSCOUT_KVSCOUT_C_H_
#define KVSCOUT_KVSCOUT_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KVSCOUT_C_API
#else
#define KVSCOUT_C_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a call returns. */
enum {
  KVSCOUT_OK = 0,
  KVSCOUT_INVALID_ARGUMENT = 1, /* not a legal question; nothing was written */
  KVSCOUT_UNSUPPORTED = 2,      /* no back end for it on this machine */
  KVSCOUT_DEVICE_FAILURE = 3,
  KVSCOUT_FAILURE = 4 /* anything else, e.g. memory is short */
};

enum { /* dtype */
       KVSCOUT_U8 = 0,
       KVSCOUT_E2M1X2 = 1, /* a byte of two codes */
       KVSCOUT_E4M3 = 2,
       KVSCOUT_F16 = 3,
       KVSCOUT_BF16 = 4,
       KVSCOUT_F32 = 5,
       KVSCOUT_I32 = 6,
       KVSCOUT_I64 = 7
};
enum { KVSCOUT_CPU = 0, KVSCOUT_CUDA = 1 }; /* device_type */
enum {
  KVSCOUT_REDUCE_NONE = 0,
  KVSCOUT_REDUCE_ALL = 1,
  KVSCOUT_REDUCE_KV_GROUP = 2
}; /* reduce_heads */
enum { KVSCOUT_LAYOUT_128X4 = 0, KVSCOUT_LAYOUT_8X4 = 1, KVSCOUT_LAYOUT_LINEAR = 2 }; /* layout */

/* A view of the caller's memory. Inputs are not written. */
typedef struct kvscout_tensor {
  size_t size;
  void* data;
  int32_t dtype, rank; /* rank 1 to 4 */
  int64_t shape[4];
  int64_t stride[4]; /* in elements */
  int32_t device_type, device_index;
} kvscout_tensor;

/* A dense row-major tensor in host memory. */
static inline kvscout_tensor kvscout_dense(const void* data, int32_t dtype, int32_t rank,
                                           const int64_t* shape) {
  kvscout_tensor t;
  int64_t step = 1;
  t.size = sizeof t;
  t.data = (void*)data;
  t.dtype = dtype;
  t.rank = rank;
  t.device_type = KVSCOUT_CPU;
  t.device_index = 0;
  for (int32_t i = 3; i >= 0; --i) {
    t.shape[i] = i < rank ? shape[i] : 1;
    t.stride[i] = step;
    step *= t.shape[i] > 0 ? t.shape[i] : 1;
  }
  return t;
}

/* A number, or one float where the data lie; the pointer wins. */
typedef struct kvscout_scale {
  float value;
  const float* pointer;
} kvscout_scale;

typedef struct kvscout_options {
  size_t size;
  const char* backend; /* a name of kvscout_backend; NULL: the first that fits */
  void* stream;        /* cudaStream_t */
  void* workspace;     /* on the device of the data, aligned to 256 bytes, any content */
  size_t workspace_bytes;
  int32_t threads; /* host threads; 0: all */
  int32_t check;   /* 1: checked mode */
  char* message;   /* receives why a call failed, one line that ends in 0; may be NULL */
  size_t message_bytes;
} kvscout_options;

/* a (..., K) f32, f16 or bf16 -> codes u8 (..., K/2), scales u8. a_global_sf: the forward scale,
 * 2688/amax. */
typedef struct kvscout_quantize_args {
  size_t size;
  const kvscout_tensor* a;
  kvscout_scale a_global_sf;
  int32_t layout;
  const kvscout_tensor *codes, *scales;
} kvscout_quantize_args;

/* kvscout.h describes the fields. The global scales are the inverse ones; 0 in kv_block_step is 1.
 */
typedef struct kvscout_score_fp4_args {
  size_t size;
  const kvscout_tensor *q_fp4, *k_fp4, *q_scale, *k_scale;
  kvscout_scale q_global_scale, k_global_scale;
  const kvscout_tensor *cu_seqlens_q, *cu_seqlens_k, *page_table, *seqused_k;
  int32_t causal, reduce_heads;
  int64_t max_seqlen_q, max_k_tiles;
  const kvscout_tensor* output;
  int32_t has_q_offset; /* q_offset as a number, or q_offsets as i32 (B) */
  int64_t q_offset;
  const kvscout_tensor* q_offsets;
  int64_t kv_block_start, kv_block_step;
} kvscout_score_fp4_args;

typedef struct kvscout_score_args {
  size_t size;
  const kvscout_tensor *q, *k;
  const kvscout_tensor *cu_seqlens_q, *cu_seqlens_k, *page_table, *seqused_k;
  int32_t causal, reduce_heads;
  int64_t max_seqlen_q, max_k_tiles;
  const kvscout_tensor* output;
  int32_t has_q_offset;
  int64_t q_offset;
  const kvscout_tensor* q_offsets;
  int64_t kv_block_start, kv_block_step;
} kvscout_score_args;

typedef struct kvscout_select_args {
  size_t size;
  const kvscout_tensor* max_score; /* f32 (H, P, Tq) */
  int32_t topk;
  int32_t force_begin_blocks, force_end_blocks;
  int32_t skip_masked;
  int32_t
      has_num_valid_pages; /* as a number, or num_valid_pages_tensor as i32 (Tq), or neither: P */
  int64_t num_valid_pages;
  const kvscout_tensor* num_valid_pages_tensor;
  const kvscout_tensor* output; /* i32 (Tq, H, topk) */
} kvscout_select_args;

typedef struct kvscout_index_args {
  size_t size;
  const kvscout_score_fp4_args* score; /* its output is not used */
  int32_t topk;
  int32_t force_begin_blocks, force_end_blocks;
  const kvscout_tensor *output, *scores; /* i32 (Tq, H', topk); f32 of that shape, or NULL */
} kvscout_index_args;

typedef struct kvscout_append_args {
  size_t size;
  const kvscout_tensor* k;
  const kvscout_tensor *k_cache_fp4, *k_cache_scale;
  const kvscout_tensor* slot_mapping; /* i64 (N) */
  kvscout_scale global_scale;         /* forward */
} kvscout_append_args;

/* The operations. `options` may be NULL. */
KVSCOUT_C_API int kvscout_nvfp4_quantize(const kvscout_quantize_args* args,
                                         const kvscout_options* options);
KVSCOUT_C_API int kvscout_msa_proxy_score_fp4(const kvscout_score_fp4_args* args,
                                              const kvscout_options* options);
KVSCOUT_C_API int kvscout_msa_proxy_score(const kvscout_score_args* args,
                                          const kvscout_options* options);
KVSCOUT_C_API int kvscout_msa_topk_select(const kvscout_select_args* args,
                                          const kvscout_options* options);
KVSCOUT_C_API int kvscout_msa_index_select_fp4(const kvscout_index_args* args,
                                               const kvscout_options* options);
KVSCOUT_C_API int kvscout_msa_index_append_fp4(const kvscout_append_args* args,
                                               const kvscout_options* options);

/* Bytes of workspace that a call wants. Outputs need not be given. */
KVSCOUT_C_API int kvscout_msa_proxy_score_fp4_workspace(const kvscout_score_fp4_args* args,
                                                        const kvscout_options* options,
                                                        size_t* bytes);
KVSCOUT_C_API int kvscout_msa_proxy_score_workspace(const kvscout_score_args* args,
                                                    const kvscout_options* options, size_t* bytes);
KVSCOUT_C_API int kvscout_msa_index_select_fp4_workspace(const kvscout_index_args* args,
                                                         const kvscout_options* options,
                                                         size_t* bytes);

/* What max_seqlen_q and max_k_tiles must be at least, from lengths in host memory. Bounds and
 * output need not be given. */
typedef struct kvscout_bounds {
  size_t size;
  int64_t max_seqlen_q, max_k_tiles;
} kvscout_bounds;
KVSCOUT_C_API int kvscout_msa_proxy_score_fp4_bounds(const kvscout_score_fp4_args* args,
                                                     const kvscout_options* options,
                                                     kvscout_bounds* bounds);
KVSCOUT_C_API int kvscout_msa_proxy_score_bounds(const kvscout_score_args* args,
                                                 const kvscout_options* options,
                                                 kvscout_bounds* bounds);

/* What kvscout_msa_proxy_score_fp4 would do: back end, schedule, tiles, splits, workspace. */
typedef struct kvscout_plan {
  size_t size;
  char text[512]; /* one line for a log, ends in 0; long text is cut */
} kvscout_plan;
KVSCOUT_C_API int kvscout_explain(const kvscout_score_fp4_args* args,
                                  const kvscout_options* options, kvscout_plan* plan);

/* Bytes of the scales of `rows` rows of `groups` groups of 16 in a layout, padding included; 0 for
 * a layout or size that does not exist. */
KVSCOUT_C_API size_t kvscout_scale_bytes(int32_t layout, int64_t rows, int64_t groups);

typedef struct kvscout_backend_info {
  size_t size;
  char name[32], built_for[128], status[256]; /* end in 0; long text is cut */
  int32_t available;                          /* 1: runs on this machine */
  int32_t device_type;
} kvscout_backend_info;
/* The back end of that index, from 0; KVSCOUT_INVALID_ARGUMENT behind the last. */
KVSCOUT_C_API int kvscout_backend(int32_t index, kvscout_backend_info* info);

KVSCOUT_C_API const char* kvscout_version(void);

#ifdef __cplusplus
}
#endif

#endif /* KVSCOUT_KVSCOUT_C_H_ */
