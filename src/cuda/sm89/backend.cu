// SM89 (Ada).
#include "cuda/table.h"

KVSCOUT_CUDA_BACKEND(sm89, false)
