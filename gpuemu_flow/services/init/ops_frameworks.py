"""Sources of the ops that a new workspace gets, in PyTorch, JAX and TensorFlow."""

TORCH_SOFTMAX = '''\
"""Softmax over the last axis in PyTorch: float32 inside, the input's dtype outside."""

import torch


def softmax(x):
    """Softmax of the tensor `x` over its last axis."""
    wide = x.float()
    weights = (wide - wide.amax(dim=-1, keepdim=True)).exp()
    return (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)
'''

TORCH_RMSNORM = '''\
"""Root mean square normalisation of rows in PyTorch, accumulated in float32."""

import torch


def rmsnorm(x, weight, eps):
    """`x` [M, N] over the root of its rows' mean squares, times `weight` [N]."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)
'''

TORCH_MATMUL = '''\
"""Matrix product in PyTorch, in tiles, accumulated in float32."""

import torch

TILE = 32


def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], TILE):
        total += a[:, start : start + TILE].float() @ b[start : start + TILE].float()
    return total.to(a.dtype)
'''

JAX_SOFTMAX = '''\
"""Softmax over the last axis in JAX: float32 inside, the input's dtype outside."""

import jax
import jax.numpy as jnp


@jax.jit
def softmax(x):
    """Softmax of the array `x` over its last axis."""
    wide = jnp.asarray(x, jnp.float32)
    weights = jnp.exp(wide - wide.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(x.dtype)
'''

JAX_RMSNORM = '''\
"""Root mean square normalisation of rows in JAX, accumulated in float32."""

import jax
import jax.numpy as jnp


@jax.jit
def rmsnorm(x, weight, eps):
    """`x` [M, N] over the root of its rows' mean squares, times `weight` [N]."""
    wide = jnp.asarray(x, jnp.float32)
    scale = 1 / jnp.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps)
    return (wide * scale * jnp.asarray(weight, jnp.float32)).astype(x.dtype)
'''

JAX_MATMUL = '''\
"""Matrix product in JAX, accumulated in float32."""

import jax
import jax.numpy as jnp


@jax.jit
def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    left, right = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST).astype(a.dtype)
'''

TENSORFLOW_SOFTMAX = '''\
"""Softmax over the last axis in TensorFlow: float32 inside, the input's dtype outside."""

import tensorflow as tf


def softmax(x):
    """Softmax of the array `x` over its last axis."""
    wide = tf.cast(tf.convert_to_tensor(x), tf.float32)
    weights = tf.exp(wide - tf.reduce_max(wide, axis=-1, keepdims=True))
    return tf.cast(weights / tf.reduce_sum(weights, axis=-1, keepdims=True), x.dtype).numpy()
'''

TENSORFLOW_RMSNORM = '''\
"""Root mean square normalisation of rows in TensorFlow, accumulated in float32."""

import tensorflow as tf


def rmsnorm(x, weight, eps):
    """`x` [M, N] over the root of its rows' mean squares, times `weight` [N]."""
    wide = tf.cast(tf.convert_to_tensor(x), tf.float32)
    scale = tf.math.rsqrt(tf.reduce_mean(wide * wide, axis=-1, keepdims=True) + eps)
    return tf.cast(wide * scale * tf.cast(weight, tf.float32), x.dtype).numpy()
'''

TENSORFLOW_MATMUL = '''\
"""Matrix product in TensorFlow, accumulated in float32."""

import tensorflow as tf


def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    left, right = tf.cast(a, tf.float32), tf.cast(b, tf.float32)
    return tf.cast(tf.matmul(left, right), a.dtype).numpy()
'''
