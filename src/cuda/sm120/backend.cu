// SM120 and SM121 (GeForce and RTX PRO Blackwell, DGX Spark).
#include "cuda/table.h"

KVSCOUT_CUDA_BACKEND(sm120, false)
