"""accelerate: a line is fitted; 40 steps. Argument: the folder of the state."""

import sys
import time

import torch
from accelerate import Accelerator

from holdfast.integrations.accelerate import load_state, run_steps

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(1, 1)
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.SGD(model.parameters(), 0.1),
    torch.utils.data.DataLoader(torch.rand(160, 1), batch_size=4),
)
first = load_state(accelerator, sys.argv[1] + "/state")
batches = accelerator.skip_first_batches(loader, first)
done = first
for batch in run_steps(accelerator, batches, sys.argv[1] + "/state", first=first, total=40):
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(batch), 3 * batch + 1))
    optimizer.step()
    done += 1
    time.sleep(0.05)
print(f"done {done} from {first}")
