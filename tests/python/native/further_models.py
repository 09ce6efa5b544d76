# SPDX-License-Identifier: Apache-2.0
"""Sixteen small models of torchvision and transformers that `benchmarks/architectures` does not have.

They have random weights and train on the same real data. Each is chosen for operators that the others lack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torchvision import models
from torchvision.models import segmentation, swin_transformer
from torchvision.models._utils import IntermediateLayerGetter

from benchmarks.workloads import data
from benchmarks.workloads.base import Batch, Training, Workload, cross_entropy, supervised

_BATCH, _COUNT, _LENGTH, _VOCABULARY, _LABELS = 8, 4, 32, 128, 8


def _training(model: nn.Module, loss_of: Callable[[nn.Module, Batch], Tensor], batches: list[Batch]) -> Training:
    """SGD, not Adam: Adam turns a tiny gradient's rounding into a whole step, so weights could not be compared."""
    model.train()
    return supervised(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), loss_of, batches)


def _patches(size: int) -> list[tuple[Tensor, Tensor]]:
    return data.shuffled_batches(*data.photo_patches(size, 8 * _BATCH, seed=9), batch=_BATCH, count=_COUNT, seed=9)


def _pictures(model: nn.Module, size: int = 64) -> Training:
    return _training(model, cross_entropy, list(_patches(size)))


def _keywords(model: nn.Module, batches: list[dict[str, Any]]) -> Training:
    def loss_of(model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(**batch[0]).loss
        return loss

    return _training(model, loss_of, [(inputs,) for inputs in batches])


def _texts() -> list[Tensor]:
    return [ids for ids, _ in data.next_token_batches(data.characters(), _BATCH, _LENGTH, _COUNT, seed=9)]


def _language_model(model: nn.Module) -> Training:
    return _keywords(model, [{"input_ids": ids, "labels": ids} for ids in _texts()])


def _classifier(model: nn.Module) -> Training:
    """Returns a session that predicts whether the first character is a letter."""
    return _keywords(model, [{"input_ids": ids, "labels": (ids[:, 0] > 96).long()} for ids in _texts()])


def alexnet() -> Training:
    """AlexNet: large filters, overlapping pooling, averages that are larger than their image, dropout."""
    model = models.AlexNet(num_classes=_LABELS)
    hidden = nn.Linear(9216, 64), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(64, 64), nn.ReLU(inplace=True)
    model.classifier = nn.Sequential(nn.Dropout(), *hidden, nn.Linear(64, _LABELS))
    return _pictures(model)


def convnext() -> Training:
    """ConvNeXt: layer norm over channels, layer scale, stochastic depth."""
    sizes = [(16, 32), (32, 64), (64, None)]
    blocks = [models.convnext.CNBlockConfig(size, out, 1) for size, out in sizes]
    return _pictures(models.ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=_LABELS))


def deeplabv3() -> Training:
    """DeepLab v3: dilated convolutions, an image of one pixel that is scaled up, a loss for each pixel."""
    body = models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1])
    backbone = IntermediateLayerGetter(body, {"layer2": "aux", "layer3": "out"})
    head = segmentation.deeplabv3.DeepLabHead(256, _LABELS, (1, 2, 3))
    model = segmentation.DeepLabV3(backbone, head, segmentation.fcn.FCNHead(128, _LABELS))

    def loss_of(model: nn.Module, batch: Batch) -> Tensor:
        (images,) = batch
        brightness = (images.mean(1) * _LABELS).long().clamp(max=_LABELS - 1)
        found = model(images)
        auxiliary = nn.functional.cross_entropy(found["aux"], brightness)
        return nn.functional.cross_entropy(found["out"], brightness) + 0.5 * auxiliary

    return _training(model, loss_of, [(images,) for images, _ in _patches(48)])


def googlenet() -> Training:
    """GoogLeNet: concatenated branches, pooling that rounds up, two auxiliary classifiers."""

    def loss_of(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        own, *auxiliary = (nn.functional.cross_entropy(logits, labels) for logits in model(images))
        loss: Tensor = own + 0.3 * sum(auxiliary)
        return loss

    model = models.GoogLeNet(num_classes=_LABELS, aux_logits=True, init_weights=False)
    return _training(model, loss_of, list(_patches(64)))


def mnasnet() -> Training:
    """MNASNet: depthwise convolutions of two sizes, BatchNorm with a momentum of 0.0003."""
    return _pictures(models.MNASNet(0.35, num_classes=_LABELS))


def resnext() -> Training:
    """ResNeXt: bottlenecks with grouped convolutions."""
    return _pictures(models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], _LABELS, groups=8, width_per_group=4))


def squeezenet() -> Training:
    """SqueezeNet: concatenated branches without normalisation, a convolution as classifier."""
    return _pictures(models.squeezenet1_1(weights=None, num_classes=_LABELS))


def swin_v2() -> Training:
    """Swin v2: cosine attention in shifted windows, position biases from a small network."""
    model = models.SwinTransformer(
        patch_size=[4, 4],
        embed_dim=24,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        num_classes=_LABELS,
        block=swin_transformer.SwinTransformerBlockV2,
        downsample_layer=swin_transformer.PatchMergingV2,
    )
    return _pictures(model)


_SMALL = {"vocab_size": _VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}


def convbert() -> Training:
    """ConvBERT: convolutions whose filters depend on the text, beside attention."""
    config = transformers.ConvBertConfig(**_SMALL, num_attention_heads=4, embedding_size=64, max_position_embeddings=64)
    return _language_model(transformers.ConvBertForMaskedLM(config))


def fnet() -> Training:
    """FNet: Fourier transforms in place of attention, so complex numbers inside the graph."""
    return _language_model(transformers.FNetForMaskedLM(transformers.FNetConfig(**_SMALL)))


def funnel() -> Training:
    """Funnel: a sequence that pooling shortens, relative positions by a shift."""
    sizes = {"d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128}
    config = transformers.FunnelConfig(vocab_size=_VOCABULARY, block_sizes=[1, 1], num_labels=2, **sizes)
    return _classifier(transformers.FunnelForSequenceClassification(config))


def gemma() -> Training:
    """Gemma: one key and value for all heads, RMS norm around one, scaled embeddings."""
    config = transformers.GemmaConfig(**_SMALL, num_attention_heads=4, num_key_value_heads=1, head_dim=16)
    return _language_model(transformers.GemmaForCausalLM(config))


def levit() -> Training:
    """LeViT: attention with BatchNorm and learned biases that shrinks the image, Hardswish."""
    sizes = {"hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}
    model = transformers.LevitForImageClassification(
        transformers.LevitConfig(image_size=64, num_labels=_LABELS, **sizes)
    )
    return _keywords(model, [{"pixel_values": images, "labels": labels} for images, labels in _patches(64)])


def wav2vec2() -> Training:
    """wav2vec 2.0: convolutions along a line, group norm, a filter with weight norm. Photographs are read as sounds."""
    config = transformers.Wav2Vec2Config(
        **_SMALL,
        num_attention_heads=4,
        num_labels=_LABELS,
        conv_dim=[32, 32, 32],
        conv_stride=[5, 2, 2],
        conv_kernel=[10, 3, 3],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        layerdrop=0.0,
        apply_spec_augment=False,
    )
    sounds = [(images.mean(1).flatten(1), labels) for images, labels in _patches(32)]
    model = transformers.Wav2Vec2ForSequenceClassification(config)
    # Else its forward changes requires_grad of a tensor, for gradient checkpointing, and Dynamo captures no such frame.
    model.wav2vec2.feature_extractor._requires_grad = False
    return _keywords(model, [{"input_values": sound, "labels": labels} for sound, labels in sounds])


def whisper() -> Training:
    """Whisper: convolutions before an encoder, and a decoder. Photographs are read as spectrograms."""
    config = transformers.WhisperConfig(
        vocab_size=_VOCABULARY,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=32,
        max_target_positions=_LENGTH,
        dropout=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )
    spectrograms = [images.mean(1)[:, :16].contiguous() for images, _ in _patches(64)]
    model = transformers.WhisperForConditionalGeneration(config)
    inputs = zip(spectrograms, _texts(), strict=True)
    return _keywords(model, [{"input_features": sounds, "labels": ids} for sounds, ids in inputs])


def xlnet() -> Training:
    """XLNet: attention with content and shifted relative positions as two products."""
    config = transformers.XLNetConfig(vocab_size=_VOCABULARY, d_model=64, n_layer=2, n_head=4, d_inner=128)
    return _language_model(transformers.XLNetLMHeadModel(config))


def _workload(make: Callable[[], Training]) -> Workload:
    return Workload(make.__name__, (make.__doc__ or "").strip(), seed=7, make=make)


WORKLOADS: dict[str, Workload] = {
    make.__name__: _workload(make)
    for make in (
        alexnet,
        convnext,
        deeplabv3,
        googlenet,
        mnasnet,
        resnext,
        squeezenet,
        swin_v2,
        convbert,
        fnet,
        funnel,
        gemma,
        levit,
        wav2vec2,
        whisper,
        xlnet,
    )
}
