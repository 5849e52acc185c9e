"""transformers: a tiny random GPT-2 is trained for 40 steps. Argument: the output folder."""

import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from holdfast.integrations.transformers import HoldfastTrainerCallback, find_checkpoint


class Slow(TrainerCallback):
    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        time.sleep(0.05)


config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
rows = [{"input_ids": t, "labels": t} for t in torch.randint(0, 32, (160, 8))]
args = TrainingArguments(
    sys.argv[1], max_steps=40, per_device_train_batch_size=4, report_to=[], save_strategy="no",
    use_cpu=True, disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(
    GPT2LMHeadModel(config), args, train_dataset=rows, callbacks=[HoldfastTrainerCallback(), Slow()]
)
found = find_checkpoint(sys.argv[1])
first = int(found.rpartition("-")[2]) if found else 0
trainer.train(resume_from_checkpoint=found)
print(f"done {trainer.state.global_step} from {first}")
