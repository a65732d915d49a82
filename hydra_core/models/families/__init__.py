"""Attention families of timm: each module registers the kinds of one family."""

from hydra_core.models.families import (  # noqa: F401
    channel,
    classattn,
    convolutional,
    hf_text,
    levit,
    maxxvit,
    multihead,
    multiscale,
    parallel,
    plain,
    relpos,
    rope,
    windows,
)
