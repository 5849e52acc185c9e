"""Plain PyTorch: a line is fitted; 40 steps."""

import sys
import time

import torch

from holdfast.integrations.torch import load, run_steps

torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
found = load()
first = 0
if found is not None:
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    first = found["first"]
done = first


def state() -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "first": done}


for _step in run_steps(range(40 - first), state, first=first, total=40):
    x = torch.rand(8, 1)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), 3 * x + 1).backward()
    optimizer.step()
    done += 1
    time.sleep(0.03)
print(f"done {done} from {first}")
sys.exit(0)
