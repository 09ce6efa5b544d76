# SPDX-License-Identifier: Apache-2.0
"""Parts that several workloads share, in the form found in small training scripts."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """Fused-projection attention over torch's scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class TransformerBlock(nn.Module):
    """Pre-norm attention and GELU feed-forward with residuals and dropout."""

    def __init__(self, width: int, heads: int, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, causal)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.feed(self.norm2(x))


class TokenEmbedding(nn.Module):
    """Token plus learned position embedding."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))


class DropoutBlock(nn.Module):
    """A residual layer with dropout before and after its product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.mix = nn.Linear(width, width)
        self.drop1, self.drop2 = nn.Dropout(0.1), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop1(nn.functional.gelu(x * self.scale + self.shift))
        return x + self.drop2(torch.tanh(self.mix(hidden)))
