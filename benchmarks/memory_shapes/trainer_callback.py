"""A Trainer of transformers, with a callback that copies the gradients of each step."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 120 * 64

    def __getitem__(self, index):
        x = torch.randn(512, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.flip(0)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 512)

    def forward(self, x, labels):
        out = self.layer(x)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


class Gradients(TrainerCallback):
    def __init__(self):
        self.copies = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.copies.append([p.grad.clone() for p in model.parameters()])  # keeps


torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=64, num_train_epochs=1, report_to=[], save_strategy="no", use_cpu=True
    )
    Trainer(model=Model(), args=arguments, train_dataset=Samples(), callbacks=[Gradients()]).train()
