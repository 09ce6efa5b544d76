# SPDX-License-Identifier: Apache-2.0
"""Architectures of transformers: language models on source text, encoder-decoders, one on pictures."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Batch, Training, supervised

_VOCABULARY, _BATCH, _LENGTH, _COUNT = 128, 8, 64, 8


def _small(config: type[Any], **changes: Any) -> Any:
    """Returns a configuration of three layers. `changes` are the values that the architecture needs or sets
    otherwise."""
    usual = {
        "vocab_size": _VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    return config(**usual | changes)


def _loss_of(model: nn.Module, batch: Batch) -> Tensor:
    (inputs,) = batch
    loss: Tensor = model(**inputs).loss
    return loss


def _training(model: nn.Module, batches: list[dict[str, Any]]) -> Training:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    model.train()
    return supervised(model, optimizer, _loss_of, [(inputs,) for inputs in batches])


def _texts(seed: int = 3) -> list[Tensor]:
    return [ids for ids, _ in data.next_token_batches(data.characters(), _BATCH, _LENGTH, _COUNT, seed)]


def _language_model(model: nn.Module) -> Training:
    """Returns a session in which every position is an input and a label. Causal models shift the labels themselves."""
    return _training(model, [{"input_ids": ids, "labels": ids} for ids in _texts()])


def _translation(model: nn.Module) -> Training:
    """Returns a session that predicts the second half of each text from the first half."""
    halves = [ids.split(_LENGTH // 2, dim=1) for ids in _texts()]
    return _training(model, [{"input_ids": a.contiguous(), "labels": b.contiguous()} for a, b in halves])


def _classifier(model: nn.Module) -> Training:
    """Returns a session that predicts whether the first character is a letter."""
    return _training(model, [{"input_ids": ids, "labels": (ids[:, 0] > 96).long()} for ids in _texts()])


def gpt2() -> Training:
    """GPT-2: learned positions, Conv1D layers, dropout, causal attention."""
    config = transformers.GPT2Config(vocab_size=_VOCABULARY, n_positions=_LENGTH, n_embd=128, n_layer=3, n_head=4)
    return _language_model(transformers.GPT2LMHeadModel(config))


def llama_checkpointed() -> Training:
    """Llama with gradient checkpointing: each layer is computed again in the backward."""
    config = _small(transformers.LlamaConfig, intermediate_size=352)
    model = transformers.LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    return _language_model(model)


def qwen3() -> Training:
    """Qwen 3: grouped-query attention with normalised queries and keys, gated SiLU."""
    config = _small(transformers.Qwen3Config, intermediate_size=384, num_key_value_heads=2, head_dim=32)
    return _language_model(transformers.Qwen3ForCausalLM(config))


def gpt_neox() -> Training:
    """GPT-NeoX: parallel attention and feed-forward, partly rotary positions."""
    config = _small(transformers.GPTNeoXConfig, max_position_embeddings=_LENGTH)
    return _language_model(transformers.GPTNeoXForCausalLM(config))


def bloom() -> Training:
    """BLOOM: ALiBi, GELU as a custom autograd function."""
    config = transformers.BloomConfig(vocab_size=_VOCABULARY, hidden_size=128, n_layer=3, n_head=4)
    return _language_model(transformers.BloomForCausalLM(config))


def mixtral() -> Training:
    """Mixtral: a router sends each token to 2 of 4 expert networks."""
    sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2}
    config = _small(transformers.MixtralConfig, **sizes, num_key_value_heads=2, num_local_experts=4)
    return _language_model(transformers.MixtralForCausalLM(config))


def albert() -> Training:
    """ALBERT: one layer's weights used by all layers, factorised embeddings."""
    config = _small(transformers.AlbertConfig, embedding_size=64)
    return _language_model(transformers.AlbertForMaskedLM(config))


def electra() -> Training:
    """ELECTRA as a classifier of texts."""
    config = _small(transformers.ElectraConfig, embedding_size=64)
    return _classifier(transformers.ElectraForSequenceClassification(config))


def deberta_v2() -> Training:
    """DeBERTa v2: attention that separates content from relative position, gathers of positions."""
    positions = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 32}
    config = _small(transformers.DebertaV2Config, num_hidden_layers=2, **positions)
    return _classifier(transformers.DebertaV2ForSequenceClassification(config))


def reformer() -> Training:
    """Reformer: local attention in reversible layers, a custom autograd function over the whole stack."""
    config = transformers.ReformerConfig(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        attention_head_size=32,
        num_attention_heads=4,
        attn_layers=["local", "local"],
        feed_forward_size=256,
        axial_pos_embds=False,
        max_position_embeddings=_LENGTH,
        local_attn_chunk_length=16,
        is_decoder=True,
    )
    return _language_model(transformers.ReformerModelWithLMHead(config))


def t5() -> Training:
    """T5: encoder and decoder with relative position biases, RMS normalisation."""
    config = transformers.T5Config(
        vocab_size=_VOCABULARY, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return _translation(transformers.T5ForConditionalGeneration(config))


def bart() -> Training:
    """BART: encoder and decoder with learned positions and cross-attention."""
    config = transformers.BartConfig(
        vocab_size=_VOCABULARY,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_position_embeddings=_LENGTH,
    )
    return _translation(transformers.BartForConditionalGeneration(config))


def segformer() -> Training:
    """SegFormer: convolutional patch embeddings, attention over a reduced sequence, depthwise convolutions."""
    config = transformers.SegformerConfig(
        hidden_sizes=[16, 32, 64, 128], decoder_hidden_size=64, depths=[1, 1, 1, 1], num_labels=8
    )
    pictures = data.shuffled_batches(*data.photo_patches(64, 64, seed=6), batch=8, count=_COUNT, seed=6)
    model = transformers.SegformerForImageClassification(config)
    return _training(model, [{"pixel_values": x, "labels": y.long()} for x, y in pictures])


RECIPES: dict[str, Callable[[], Training]] = {
    make.__name__: make
    for make in (
        gpt2,
        llama_checkpointed,
        qwen3,
        gpt_neox,
        bloom,
        mixtral,
        albert,
        electra,
        deberta_v2,
        reformer,
        t5,
        bart,
        segformer,
    )
}
