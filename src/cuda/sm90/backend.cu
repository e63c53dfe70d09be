// SM90 (Hopper).
#include "cuda/table.h"

KVSCOUT_CUDA_BACKEND(sm90, true)
