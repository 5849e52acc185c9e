"""Lightning: a line is fitted; 40 steps. Argument: the root folder."""

import sys
import time

import torch
from lightning.pytorch import LightningModule, Trainer

from holdfast.integrations.lightning import HoldfastCallback, find_checkpoint


class Fit(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        time.sleep(0.05)
        return torch.nn.functional.mse_loss(self.layer(batch), 3 * batch + 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


trainer = Trainer(
    max_steps=40, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, default_root_dir=sys.argv[1], callbacks=[HoldfastCallback()],
)  # fmt: skip
data = torch.utils.data.DataLoader(torch.rand(160, 1), batch_size=4)
found = find_checkpoint()
first = torch.load(found, weights_only=False)["global_step"] if found else 0
trainer.fit(Fit(), data, ckpt_path=found, weights_only=False)
print(f"done {trainer.global_step} from {first}")
