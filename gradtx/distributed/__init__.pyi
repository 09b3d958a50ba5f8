# Steps on many devices: what they send, and how often.

from gradtx.distributed.aggregation import aggregate as aggregate, share_value as share_value
from gradtx.distributed.compression import (
    aggregate_bf16 as aggregate_bf16,
    aggregate_int8 as aggregate_int8,
    aggregate_power_sgd as aggregate_power_sgd,
    aggregate_top_k as aggregate_top_k,
)
from gradtx.distributed.local import diloco as diloco, local_sgd as local_sgd
