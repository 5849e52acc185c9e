"""diffusers: an unconditional pipeline of a tiny random model; 10 denoising steps."""

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

from holdfast.integrations.diffusers import beat_on_step

torch.manual_seed(1)
unet = UNet2DConditionModel(
    sample_size=8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=16,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=4,
)  # fmt: skip
vae = AutoencoderKL(block_out_channels=[8], norm_num_groups=4)
text = CLIPTextModel(
    CLIPTextConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=64,
    )
)
pipe = StableDiffusionPipeline(
    vae=vae, text_encoder=text, tokenizer=None, unet=unet, scheduler=DDIMScheduler(),
    safety_checker=None, feature_extractor=None, requires_safety_checker=False,
)  # fmt: skip
pipe.set_progress_bar_config(disable=True)
words = torch.zeros(1, 4, 16)
image = pipe(
    prompt_embeds=words, negative_prompt_embeds=words, num_inference_steps=10, height=16, width=16,
    output_type="np", callback_on_step_end=beat_on_step(),
)  # fmt: skip
print(f"done {image.images.shape}")
