"""Ray: eight tasks on two workers of this machine, which beat themselves; the driver beats too."""

import ray

import holdfast
from holdfast.integrations.ray import as_completed, runtime_env

ray.init(num_cpus=2, include_dashboard=False, runtime_env=runtime_env(), log_to_driver=False)


@ray.remote
def work(number: int) -> int:
    holdfast.beat(1000 + number)
    return number


found = sorted(ray.get(list(as_completed([work.remote(n) for n in range(8)]))))
print(f"done {found}")
ray.shutdown()
